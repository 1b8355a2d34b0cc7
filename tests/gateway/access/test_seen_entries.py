"""What a daemon has seen of the registry outlives its process: an older signed message is not taken after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.access.entry_book import EntryBook
from gateway.access.seen_entries import SeenEntries
from identity.operator_keys import OperatorKeys
from identity.registry import DeviceEntry, DeviceState, enrol, expect_again, renew, resume, revoke, suspend
from identity.registry_reader import DeviceRegistry, Outranked, Taken
from identity.registry_signing import check_by
from runtime.compacted_topic import TopicMessage
from tests.identity.operators import trusting
from tests.identity.registry_strategies import CERTIFICATE, OTHER_CLAIM, active, change, expected
from tests.identity.test_registry_signing import BOTH, KEYS, signed

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
            self.restored = [made.entry for made in seen.restore(self.registry, check)]
            for entry in self.restored:
                self.book.take(entry)
            self.became = [self._take(message, seen, check) for message in messages]
            self.published_again = [
                seen.message(one.publication.entry.name) for one in self.became if isinstance(one, Outranked)
            ]
            self.problem = seen.problem

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


def test_a_damaged_file_is_kept_and_the_topic_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "seen").write_bytes(b"no database" * 1000)
    begun = Process(tmp_path / "seen", [signed(active())])
    assert (begun.problem, begun.registry.get("acme/bus-1")) == ("", active())
    assert (tmp_path / "seen.damaged").exists()
    assert Process(tmp_path / "seen").restored == [active()]


def test_a_disk_that_takes_nothing_is_a_problem_and_stops_nothing(tmp_path: Path) -> None:
    registry: DeviceRegistry[DeviceEntry] = DeviceRegistry(lambda made, _: made.entry)
    with SeenEntries(tmp_path / "seen") as seen:
        assert seen._database is not None
        seen._database.execute("DROP TABLE entries")
        seen.keep(signed(active()))
        assert "no such table" in seen.problem
        assert list(seen.restore(registry, None)) == []
