"""What devices say of pushed settings is read within bounds."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import PushFolder
from gateway.push import MAX_RESULT_BYTES, OUTCOMES, UNKNOWN, PushQueue, parse_config_result
from tests.identity.operators import operator, operators_file
from waybill.identity.signatures import NewOperator, sign_push


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[" * 80_000,
        b'{"a":' * 80_000,
        b"1e999",
        b'{"outcome": "\\ud83d"}',
        b'{"outcome": ["applied"]}',
        b'{"outcome": "done"}',
        b'["applied"]',
        b'{"outcome": "applied", "outcome": "refused"}',
        b'{"outcome": "applied", "reason": "' + b"x" * MAX_RESULT_BYTES + b'"}',
    ],
)
def test_an_answer_that_cannot_be_read_is_unknown_and_says_why(payload: bytes) -> None:
    began = time.perf_counter()
    answer = parse_config_result(payload)
    assert time.perf_counter() - began < 0.05
    assert answer.outcome == UNKNOWN
    assert 0 < len(answer.reason) <= 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["outcome", "reason", "x"]), inner),
    max_leaves=10,
)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_whatever_make_it_raise(payload: bytes) -> None:
    answer = parse_config_result(payload)
    assert answer.outcome in {*OUTCOMES, UNKNOWN}
    answer.reason.encode()


def queue_of(folder: Path, *trusted: NewOperator) -> tuple[PushQueue, list[str]]:
    refused: list[str] = []
    settings = PushFolder(folder=folder, operators=operators_file(folder / "operators.toml", *trusted))
    return PushQueue(settings, lambda: refused.append("refused")), refused


def test_a_gateway_publishes_what_was_signed_for_that_device_and_counts_the_rest(tmp_path: Path) -> None:
    anna, acme = operator("anna"), operator("acme clerk", tenants=("acme",))
    (tmp_path / "beta").mkdir()
    files = {
        "good": sign_push(anna.key, "beta/good", 5, b"a = 1\n"),
        "unsigned": b"a = 1\n",
        "altered": sign_push(anna.key, "beta/altered", 5, b"a = 1\n").replace(b"a = 1", b"a = 2"),
        "another": sign_push(anna.key, "beta/other", 5, b"a = 1\n"),
        "tenant": sign_push(acme.key, "beta/tenant", 5, b"a = 1\n"),
        "unknown": sign_push(operator("lost").key, "beta/unknown", 5, b"a = 1\n"),
    }
    for name, text in files.items():
        (tmp_path / "beta" / f"{name}.toml").write_bytes(text)
    queue, refused = queue_of(tmp_path, anna, acme)
    published = []
    while queue.has_waiting:
        if push := queue.take_next():
            published.append((push.sender.device, push.text))
    assert (published, len(refused)) == ([("good", files["good"])], len(files) - 1)
