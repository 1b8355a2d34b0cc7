"""What the enrolment broker reads, and the book that it follows from."""

from __future__ import annotations

import re
from datetime import timedelta

from gateway.access.enrolment import REPEAT_WITHIN
from gateway.access.enrolment_broker import enrolment_passwords, enrolment_rules, name_at_enrolment
from gateway.access.entry_book import EntryBook
from identity.registry import Claim, DeviceChange, revoke
from tests.gateway.access.test_enrolment_desk import CLAIM, HASH, NOW, World, expected

OWN = {"access@eu-0f": "$7$own"}


def test_nobody_who_signs_names_guesses_what_the_daemon_is_called_at_the_enrolment_broker() -> None:
    names = {name_at_enrolment("eu", secret) for secret in ("one", "another")}
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"access@eu-[0-9a-f]{16}", name)
    assert name_at_enrolment("eu", "one") in names, "after each start the same"


def test_a_claim_may_write_its_own_requests_and_read_their_answers_and_nothing_else() -> None:
    assert enrolment_rules("access@eu-0f") == (
        "user access@eu-0f\ntopic read waybill/enrol/1/+/request\ntopic write waybill/enrol/1/+/answer\n"
        "pattern write waybill/enrol/1/%u/request\npattern read waybill/enrol/1/%u/answer\n"
    )


def test_the_passwords_are_those_of_open_tokens_and_of_the_daemon() -> None:
    entry = expected()
    line = f"{CLAIM}:{HASH}\n".encode()
    own = b"access@eu-0f:$7$own\n"
    assert enrolment_passwords([entry], "eu", NOW, OWN) == own + line
    assert enrolment_passwords([entry], "us", NOW, OWN) == own
    assert enrolment_passwords([entry], "eu", NOW + timedelta(days=7), OWN) == own
    world = World(entry)
    world.ask()
    assert enrolment_passwords([world.entry], "eu", NOW, OWN) == own + line
    assert enrolment_passwords([world.entry], "eu", NOW + REPEAT_WITHIN, OWN) == own


def test_the_book_finds_an_entry_its_warrant_and_the_tokens_that_there_are_now() -> None:
    book, entry = EntryBook("eu"), expected()
    book.take(entry, "an operator's word")
    assert (book.device(entry.name), book.warrant(entry.name)) == (entry, "an operator's word")
    assert book.tokens() == [entry]
    assert book.claimed_by(CLAIM.partition("@")[2]) == (entry.name,)
    other = entry.model_copy(update={"version": 2, "claim": Claim(id="SN-1")})
    book.take(other)
    assert book.tokens() == []
    assert book.claimed_by(CLAIM.partition("@")[2]) == ()
    assert book.claimed_by("SN-1") == (entry.name,)
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
