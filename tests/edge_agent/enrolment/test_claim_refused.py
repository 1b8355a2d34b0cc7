"""What an installer reads when a claim brought no certificate: the cause, and what to do."""

import pytest

from edge_agent.uplink.mqtt_session import claim_refusal


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("host:1: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "enrolment.ca"),
        ("host:1: [Errno 111] Connection refused", "the network"),
        ("host:1: [Errno -2] Name or service not known", "the network"),
        ("host:1: timed out", "the network"),
        ("host:1: the broker sent a malformed packet", "expect --again"),
        ("host:1: the broker refuses: Not authorized", "turned away"),
        ("host:1: [SSL] tlsv1 alert certificate expired", "turned away"),
    ],
)
def test_each_cause_has_its_words(problem: str, said: str) -> None:
    assert said in claim_refusal(problem)
