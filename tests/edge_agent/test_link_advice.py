"""What a refused connection means: each names the device and whom to ask, once."""

from __future__ import annotations

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from edge_agent.uplink.mqtt_session import claim_refusal, named, refusal, turned_away


@pytest.mark.parametrize(
    "problem",
    [
        "eu.example:8883: EOF occurred in violation of protocol (_ssl.c:2427)",
        "eu.example:8883: connection lost while receiving: [SSL: SSLV3_ALERT_CERTIFICATE_REVOKED] (_ssl.c:2580)",
        "eu.example:8883: [Errno 104] Connection reset by peer",
        "eu.example:8883: the broker closed the connection",
    ],
)
def test_a_certificate_that_is_turned_away_names_whom_to_ask(problem: str) -> None:
    assert "`waybill device show fleet/bus-1`" in named(turned_away(problem), "fleet/bus-1")


@pytest.mark.parametrize("problem", ["[Errno 111] Connection refused", "CERTIFICATE_VERIFY_FAILED", "timed out"])
def test_what_says_nothing_of_the_certificate_has_no_such_advice(problem: str) -> None:
    assert turned_away(problem) == ""


def test_a_refused_claim_has_its_advice_once_and_the_name_where_that_is_known() -> None:
    said = refusal(ReasonCode(PacketTypes.CONNACK, identifier=0x87))
    assert claim_refusal(said) == ""
    assert named(said, "fleet/bus-1").count("waybill device show fleet/bus-1") == 1
    assert "--again" in said
    assert "TENANT/DEVICE" not in named(claim_refusal("the broker closed the connection"), "fleet/bus-1")
