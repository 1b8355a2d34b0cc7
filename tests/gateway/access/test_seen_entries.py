"""What a daemon has seen of the registry outlives its process: an older signed message is not taken after a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.access import seen_entries as module
from gateway.access.daemon import HeldEntries
from gateway.access.displaced import Displaced
from gateway.access.enrolment import EntryBook
from gateway.access.seen_entries import SeenEntries
from tests.identity.operators import trusting
from tests.identity.registry_strategies import CERTIFICATE, OTHER_CLAIM, active, change, expected
from tests.identity.test_registry_signing import ANNA, BOTH, KEYS, signed
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.registry import (
    DeviceEntry,
    DeviceState,
    enrol,
    expect_again,
    renew,
    resume,
    revoke,
    suspend,
)
from waybill.identity.registry_messages import check_by
from waybill.identity.registry_topic import DeviceRegistry, Outranked, Taken
from waybill.pulsar.compacted_topic import TopicMessage

ENROLLED = enrol(expected(), CERTIFICATE, change())
RENEWED = renew(ENROLLED, CERTIFICATE.model_copy(update={"serial": "abc2"}), change())
AWAY = change(60)


class Process:
    """A daemon's view of the registry, from its start to its end."""

    def __init__(self, path: Path, messages: Iterable[TopicMessage] = (), keys: OperatorKeys = KEYS) -> None:
        self.registry: DeviceRegistry[DeviceEntry] = DeviceRegistry(lambda made, _: made.entry)
        self.book = EntryBook("eu")
        check = check_by(keys)
        with SeenEntries(path) as seen:
            held = HeldEntries(self.registry, seen, Displaced(lambda _: True), check)
            self.restored = [made.entry for made in held.restore()]
            for entry in self.restored:
                self.book.take(entry)
            self.became = [self._take(message, seen, check) for message in messages]
            self.published_again = [
                seen.message(one.publication.entry.name) for one in self.became if isinstance(one, Outranked)
            ]
            self.problem = "; ".join(filter(None, (seen.problem, held.problem)))

    def _take(self, message: TopicMessage, seen: SeenEntries, check: object) -> object:
        became = self.registry.take(message, check)  # type: ignore[arg-type]
        if isinstance(became, Taken):
            self.book.take(became.publication.entry)
            seen.keep(message)
        return became


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (active(), revoke(active(), change())),
        (active(), suspend(active(), change())),
        (suspend(active(), change()), resume(suspend(active(), change()), change())),
        (expected(), ENROLLED),
        (ENROLLED, RENEWED),
        (ENROLLED, expect_again(ENROLLED, region="eu", claim=OTHER_CLAIM, change=AWAY)),
    ],
    ids=["revoked", "suspended", "resumed", "enrolled", "renewed", "expected again"],
)
def test_an_older_signed_entry_that_is_all_the_topic_has_is_not_taken_after_a_restart(
    tmp_path: Path, older: DeviceEntry, newer: DeviceEntry
) -> None:
    first, last = signed(older), signed(newer, after_ms=5)
    assert Process(tmp_path / "seen", [first, last]).registry.get("acme/bus-1") == newer
    again = Process(tmp_path / "seen", [first._replace(published_ms=first.published_ms + 60_000)])
    assert again.restored == [newer]
    assert [type(became) for became in again.became] == [Outranked]
    assert again.registry.get("acme/bus-1") == newer
    assert again.published_again == [last], "so that the topic has it again, as it was signed"


def test_a_claim_that_was_used_is_not_open_again_by_the_message_that_gave_it(tmp_path: Path) -> None:
    first, last = signed(expected()), signed(ENROLLED, after_ms=5)
    used = Process(tmp_path / "seen", [first, last, first]).book
    after_restart = Process(tmp_path / "seen", [first]).book
    for book in (used, after_restart):
        entry = book.device("acme/bus-1")
        assert entry is not None
        assert (entry.state, entry.certificates) == (DeviceState.ACTIVE, (CERTIFICATE,))


def test_a_claim_that_was_replaced_stays_so(tmp_path: Path) -> None:
    other = expect_again(ENROLLED, region="eu", claim=OTHER_CLAIM, change=AWAY)
    Process(tmp_path / "seen", [signed(ENROLLED), signed(other, after_ms=5)])
    book = Process(tmp_path / "seen", [signed(expected()), signed(ENROLLED)]).book
    assert book.device("acme/bus-1") == other


def test_what_a_key_signed_that_is_trusted_no_more_is_not_restored(tmp_path: Path) -> None:
    Process(tmp_path / "seen", [signed(active())])
    assert Process(tmp_path / "seen", keys=trusting(BOTH)).restored == []


def test_a_damaged_file_is_kept_beside_former_ones_and_named_until_somebody_removes_it(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "seen").write_bytes(b"no database" * number * 1000)
        begun = Process(tmp_path / "seen", [signed(active())])
        assert begun.registry.get("acme/bus-1") == active()
        assert "seen.damaged was damaged" in begun.problem
    damaged = [tmp_path / "seen.damaged", tmp_path / "seen.damaged-2"]
    assert [path.read_bytes() for path in damaged] == [b"no database" * 1000, b"no database" * 2000]
    again = Process(tmp_path / "seen")
    assert again.restored == [active()]
    assert "was damaged" in again.problem, "at the next start too"
    for path in damaged:
        path.unlink()
    assert Process(tmp_path / "seen").problem == ""


def test_of_a_file_that_is_half_damaged_the_rest_is_taken_over(tmp_path: Path) -> None:
    path, numbers = tmp_path / "seen", range(500)
    names = [f"acme/bus-{number:03}" for number in numbers]
    with SeenEntries(path) as seen:
        for name in names:
            seen.keep(TopicMessage(name, b"x" * 900, {"a": "b"}, 1))
    data = bytearray(path.read_bytes())
    data[4096 * 40 : 4096 * 60] = b"\xff" * 4096 * 20
    path.write_bytes(data)
    with SeenEntries(path) as seen:
        assert "was damaged" in seen.problem
        left = [name for name in names if seen.message(name) is not None]
        assert 350 < len(left) < 500
        assert {names[0], names[-1]} < {*left}
        for name in names:
            seen.keep(TopicMessage(name, b"y", {}, 1))
        assert "was damaged" in seen.problem, "it stays, whatever is kept later"
    with SeenEntries(path) as seen:
        assert all(seen.message(name) for name in names)


def test_a_file_that_is_damaged_while_it_is_open_is_begun_anew_and_the_topic_is_read_again(tmp_path: Path) -> None:
    now_s = 0.0
    with SeenEntries(tmp_path / "seen", lambda: now_s) as seen:
        seen.keep(signed(active()))
        seen._failed(sqlite3.DatabaseError("passing"))
        assert not seen.take_missed()
        error = sqlite3.DatabaseError("malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        seen._failed(error)
        (tmp_path / "seen").write_bytes(b"no database" * 1000)
        seen.keep(signed(active("zeta")))
        now_s = 2.0
        assert seen.look(), "to be restored"
        assert (seen.look(), seen.take_missed(), seen.take_missed()) == (False, True, False)
        assert seen.message("zeta/bus-1") == signed(active("zeta"))
        assert "was damaged" in seen.problem


def test_one_entry_that_nobody_can_read_hides_no_other_and_is_named_until_it_is_kept_again(tmp_path: Path) -> None:
    with SeenEntries(tmp_path / "seen") as seen:
        seen.keep(signed(active("acme")))
        seen.keep(signed(active("zeta"), BOTH))
        assert seen._database is not None
        seen._database.execute("UPDATE entries SET properties = '[[' WHERE name = 'acme/bus-1'")
    found = Process(tmp_path / "seen")
    assert found.restored == [active("zeta")]
    assert "acme/bus-1" in found.problem
    assert Process(tmp_path / "seen", [signed(active("acme"))]).problem == ""


def test_what_the_disk_did_not_take_stays_a_problem_until_it_takes_it(tmp_path: Path) -> None:
    now_s = 0.0
    with SeenEntries(tmp_path / "seen", lambda: now_s) as seen:
        assert seen._database is not None
        seen._database.execute("PRAGMA query_only = ON")
        for tenant in ("acme", "zeta"):
            seen.keep(signed(active(tenant)))
            assert "in memory alone" in seen.problem
            assert seen.message(f"{tenant}/bus-1") == signed(active(tenant))
        seen._database.execute("PRAGMA query_only = OFF")
        seen.look()
        assert "2 entries" in seen.problem, "not again and again"
        now_s = 2.0
        seen.look()
        assert seen.problem == ""
    assert Process(tmp_path / "seen", keys=trusting(ANNA, BOTH)).restored != []


def test_what_found_no_room_in_memory_either_has_the_topic_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    now_s = 0.0
    with SeenEntries(tmp_path / "seen", lambda: now_s) as seen:
        assert seen._database is not None
        seen._database.execute("PRAGMA query_only = ON")
        seen.keep(signed(active()))
        seen.keep(signed(active("zeta")))
        assert not seen.take_missed()
        seen._database.execute("PRAGMA query_only = OFF")
        now_s = 2.0
        seen.look()
        assert (seen.take_missed(), seen.message("zeta/bus-1")) == (True, None)


def test_a_disk_that_takes_nothing_is_a_problem_and_stops_nothing(tmp_path: Path) -> None:
    with SeenEntries(tmp_path / "seen") as seen:
        assert seen._database is not None
        seen._database.execute("DROP TABLE entries")
        seen.keep(signed(active()))
        assert "no such table" in seen.problem
        assert list(seen.all()) == []
