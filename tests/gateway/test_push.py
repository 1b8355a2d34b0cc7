"""What devices say of pushed settings is read within bounds."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.push import MAX_RESULT_BYTES, OUTCOMES, UNKNOWN, ConfigResult, parse_config_result


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_answer_is_read(outcome: str) -> None:
    assert parse_config_result(json.dumps({"outcome": outcome, "reason": "so"}).encode()) == ConfigResult(outcome, "so")


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
