"""JSON from outside is a value that everything behind can hold, or one typed error, whatever comes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.record.errors import InvalidJson
from waybill.record.strict_json import MAX_DEPTH, MAX_INTEGER, MIN_INTEGER, PLAIN_BYTES, parse_json

KIB_64 = 64 << 10
scalars = (
    st.none()
    | st.booleans()
    | st.integers(MIN_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=30,
)


def parsed(data: bytes) -> Any:
    return parse_json(data, max_bytes=KIB_64)


@given(values, st.booleans())
def test_what_json_writes_is_read(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_json(data, max_bytes=1 << 20, max_depth=MAX_DEPTH) == value


members = st.tuples(
    st.sampled_from(['"a"', '"b"', '"b:"', '"\\u0062"', '"é"', "{", "1"]),
    st.sampled_from(
        [
            "1",
            "-0.5",
            "1e999",
            "NaN",
            "9223372036854775808",
            '"x:"',
            '"{"',
            "null",
            "true",
            '"\\ud800"',
            "[]",
            "{}",
            "01",
        ]
    ),
)


@given(st.lists(members, max_size=4), st.sampled_from(["{%s}", " {%s}", "{%s} ", "{%s}x", "{%s", "%s", "\ufeff{%s}"]))
def test_a_plain_object_is_judged_like_every_other_value(pairs: list[tuple[str, str]], around: str) -> None:
    text = around % ",".join(":".join(pair) for pair in pairs)

    def outcome(data: bytes) -> Any:
        try:
            return parsed(data)
        except InvalidJson as error:
            return error.reason

    closer = outcome(b" " * (PLAIN_BYTES + 1) + text.encode())
    assert repr(outcome(text.encode())) == repr(closer)


@pytest.mark.parametrize(
    ("data", "reason", "message"),
    [
        (b" " * (KIB_64 + 1), "too-large", "65537 bytes"),
        (b"[" * 17 + b"]" * 17, "too-deep", "more than 16 deep, at byte 16"),
        (b"[" * KIB_64, "too-many-values", "10000"),
        (b'{"a":' * 5000, "too-deep", "at byte 80"),
        (b"[" + b"1," * 10_001 + b"1]", "too-many-values", "10000"),
        (b"]" * 20_000, "not-json", "byte 0"),
        (b"[" * 9 + b"]" * 20_000, "not-json", "Extra data|closes"),
        (b"[1,]", "not-json", "at byte 3"),
        (b"", "not-json", "at byte 0"),
        ("\ufeff{}".encode(), "not-json", "at byte 0"),
        ("{}".encode("utf-16"), "not-utf-8", "at byte 0"),
        (b'"\xff"', "not-utf-8", "at byte 1"),
        (b'"\xed\xa0\xbd"', "not-utf-8", "at byte 1"),
        (b"[NaN]", "not-json", "NaN"),
        (b"[-Infinity]", "not-json", "Infinity"),
        (b"[1e309]", "number-out-of-range", "1e309"),
        (b"[-1e99999999999999999999]", "number-out-of-range", "1e999"),
        (b"[9223372036854775808]", "number-out-of-range", "64 bits"),
        (b"[" + b"1" * 60_000 + b"]", "number-out-of-range", "64 bits"),
        (b"[" + b"1" * 60_000 + b".5]", "number-out-of-range", "double"),
        (b'{"a": 1, "b": 2, "a": 3}', "duplicate-name", "'a' stands twice"),
        (rb'{"value": "\ud83d"}', "lone-surrogate", "value"),
        (rb'{"\uDE00": 1}', "lone-surrogate", "half"),
    ],
)
def test_what_is_refused_says_why_and_where(data: bytes, reason: str, message: str) -> None:
    with pytest.raises(InvalidJson, match=message) as caught:
        parsed(data)
    assert caught.value.reason == reason
