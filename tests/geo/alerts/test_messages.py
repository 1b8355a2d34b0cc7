"""Alerts and verdicts travel as JSON that is judged where it enters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geo.alerts import (
    Alert,
    AlertVerdict,
    MalformedAlert,
    VerdictKind,
    decode_alert,
    decode_verdict,
    encode_alert,
    encode_verdict,
)
from geo.alerts.messages import ErrorReason, FinalEvent

ALERT = Alert(
    id="0" * 24,
    tenant="acme",
    device="bus-1",
    region="eu",
    epoch=1,
    seq=2,
    kind="exit",
    place="depot",
    t_ms=5,
    value=0.25,
    received_ms=6,
    raised_ms=7,
)
VERDICT = AlertVerdict(
    id="0" * 24,
    revision=1,
    verdict=VerdictKind.CORRECTED,
    tenant="acme",
    device="bus-1",
    event=FinalEvent(kind="exit", place="depot", t_ms=4, epoch=1, seq=2),
    reason=ErrorReason.INCORRECT_DATA,
    decided_ms=9,
)


def test_what_is_encoded_is_decoded_to_the_same() -> None:
    assert decode_alert(encode_alert(ALERT)) == ALERT
    assert decode_verdict(encode_verdict(VERDICT)) == VERDICT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "0" * 23),
        ("id", "0" * 24 + "\n"),
        ("tenant", "../acme"),
        ("device", "bus-1/x"),
        ("seq", 1 << 63),
        ("seq", -1),
        ("seq", "2"),
        ("kind", "left"),
        ("value", -1.0),
        ("t_ms", 1 << 62),
        ("place", ""),
    ],
)
def test_an_alert_with_a_wrong_value_is_refused_and_the_name_is_said(name: str, value: object) -> None:
    changed = json.loads(encode_alert(ALERT)) | {name: value}
    with pytest.raises(MalformedAlert, match=name if value != 1 << 63 else "not JSON"):
        decode_alert(json.dumps(changed).encode())


def test_a_name_that_is_not_known_is_passed_over_and_one_that_is_missing_is_said() -> None:
    content = json.loads(encode_alert(ALERT))
    assert decode_alert(json.dumps(content | {"more": 1}).encode()) == ALERT
    del content["place"]
    with pytest.raises(MalformedAlert, match="place"):
        decode_alert(json.dumps(content).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    for decode in (decode_alert, decode_verdict):
        with pytest.raises(MalformedAlert):
            decode(data)


def test_a_reason_of_a_newer_centre_is_read_and_what_is_none_is_refused() -> None:
    content = json.loads(encode_verdict(VERDICT))
    newer = decode_verdict(json.dumps(content | {"reason": "other_fences"}).encode())
    assert newer == VERDICT.model_copy(update={"reason": "other_fences"})
    assert encode_verdict(newer) == json.dumps(content | {"reason": "other_fences"}, separators=(",", ":")).encode()
    for wrong in ("", "Two words", "x" * 65, 7):
        with pytest.raises(MalformedAlert, match="reason"):
            decode_verdict(json.dumps(content | {"reason": wrong}).encode())
