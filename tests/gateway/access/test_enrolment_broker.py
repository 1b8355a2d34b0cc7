"""What the enrolment broker reads, and the book that it follows from."""

from __future__ import annotations

import re

from gateway.access.enrolment import EntryBook
from gateway.access.enrolment_service import enrolment_rules, name_at_enrolment
from tests.gateway.access.test_enrolment_desk import NOW, expected
from waybill.identity.registry import Claim, DeviceChange, revoke


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


def test_the_book_finds_an_entry_and_its_warrant() -> None:
    book, entry = EntryBook("eu"), expected()
    book.take(entry, "an operator's word")
    assert (book.device(entry.name), book.warrant(entry.name)) == (entry, "an operator's word")
    other = entry.model_copy(update={"version": 2, "claim": Claim(id="SN-1")})
    book.take(other)
    assert book.device(entry.name) == other
    assert book.warrant(entry.name) == ""
    gone = revoke(other, DeviceChange(NOW, "ana", "stolen"))
    book.take(gone)
    assert book.device(entry.name) == gone


def test_of_another_region_only_what_may_be_asked_for_here_is_kept() -> None:
    book = EntryBook("us")
    book.take(expected())
    assert book.device("acme/bus-1") == expected(), "to be refused with the right reason"
    book.take(expected(claim=None))
    assert len(book) == 0
