"""What the enrolment broker lets whom do."""

from __future__ import annotations

import re

from gateway.access.enrolment_service import enrolment_rules, name_at_enrolment


def test_nobody_who_signs_names_guesses_what_the_daemon_is_called_at_the_enrolment_broker() -> None:
    names = {name_at_enrolment("eu", secret) for secret in ("one", "another")}
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"access@eu-[0-9a-f]{16}", name)
    assert name_at_enrolment("eu", "one") in names, "after each start the same"


def test_a_claim_may_write_its_own_requests_and_read_their_answers_and_nothing_else() -> None:
    assert enrolment_rules("access@eu-0f") == (
        "user access@eu-0f\ntopic read waybill/enrol/1/+/request\ntopic write waybill/enrol/1/+/answer\n"
        "topic read factory/waybill/enrol/1/+/request\ntopic write factory/waybill/enrol/1/+/answer\n"
        "pattern write waybill/enrol/1/%u/request\npattern read waybill/enrol/1/%u/answer\n"
        "pattern write factory/waybill/enrol/1/%u/request\npattern read factory/waybill/enrol/1/%u/answer\n"
    )
