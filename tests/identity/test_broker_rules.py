"""A device may use its own topics, and the gateways that are named may use those of all; nobody else any."""

from __future__ import annotations

from waybill.identity.broker_conf import broker_rules, rules_version


def test_a_device_has_its_own_topics_by_patterns_and_a_gateway_every_device_s() -> None:
    lines = broker_rules(3, "eu", ["eu-1"], ()).splitlines()
    assert [line for line in lines if line.startswith("pattern")][:4] == [
        "pattern write waybill/1/%u/batch",
        "pattern write waybill/1/%u/config-result",
        "pattern read waybill/1/%u/ack",
        "pattern read waybill/1/%u/config",
    ]
    begin = lines.index("user gateway@eu-1")
    assert lines[begin + 1 : begin + 5] == [
        "topic read waybill/1/+/+/batch",
        "topic read waybill/1/+/+/config-result",
        "topic write waybill/1/+/+/ack",
        "topic write waybill/1/+/+/config",
    ]


def test_no_rule_is_for_everybody() -> None:
    lines = broker_rules(3, "eu", ["eu-1"], ()).splitlines()
    topics = [number for number, line in enumerate(lines) if line.startswith("topic")]
    assert min(topics) > lines.index("user gateway@eu-1")


def test_the_version_is_read_from_the_first_line() -> None:
    assert rules_version(broker_rules(17, "eu", [], ())) == 17
    assert rules_version("topic readwrite #\n") == 0
