"""The region's own revocation list: by whatever clock, whatever an entry says, and from whatever copy of the disk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access.config import AuthorityPlace
from gateway.access.core import AccessCore
from gateway.access.own_list import OwnList
from identity import AuthorityFolder, Revoked
from identity.registry import EnrolledCertificate, enrol, resume, revoke, suspend
from tests.identity.registry_strategies import MOMENT, active, change, expected, published

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DAY = timedelta(days=1)
AT_S = MOMENT.timestamp() + 10


@pytest.fixture
def own(tmp_path: Path) -> OwnList:
    root = AuthorityFolder.create_root(tmp_path / "root", "root", now=NOW, lifetime=3000 * DAY)
    AuthorityFolder.create_regional(tmp_path / "eu", root, "eu", now=NOW, lifetime=2000 * DAY)
    return OwnList(AuthorityPlace(folder=tmp_path / "eu"), {})


@pytest.mark.parametrize("ahead", [1, 20, 1000])
def test_a_clock_that_was_ahead_once_locks_nobody_out_once_it_is_right(own: OwnList, ahead: int) -> None:
    wrong = own.update({5: Revoked(5, NOW)}, NOW + ahead * DAY)
    assert own.is_due(NOW)
    right = own.update({5: Revoked(5, NOW), 6: Revoked(6, NOW)}, NOW)
    assert right.this_update <= NOW < right.next_update
    assert right.number == wrong.number + 1
    assert right.is_later(wrong)


@pytest.mark.parametrize("at", [datetime(2000, 1, 1, tzinfo=UTC), datetime(8999, 12, 31, tzinfo=UTC)])
def test_whenever_an_entry_says_that_it_was_changed_the_list_is_made(own: OwnList, at: datetime) -> None:
    assert own.update({5: Revoked(5, at), 6: Revoked(6, NOW)}, NOW).serials == {5, 6}


def core(own: OwnList, *, lets_in: str = "nobody") -> AccessCore:
    made = AccessCore(own.issuer, lambda name: name == lets_in)
    if own.current is not None:
        made.on_own_list(own.current, AT_S)
    return made


def serials(made: AccessCore) -> set[int]:
    made.on_ready()
    step = made.take_step(AT_S + 1)
    assert step is not None
    return {*step.revoked}


def test_what_is_on_the_list_stays_when_the_registry_forgets_its_device(own: OwnList) -> None:
    own.update({5: Revoked(5, NOW)}, NOW)
    made = core(own)
    made.on_issued("acme/gone", 5, AT_S + 1000, AT_S)
    assert serials(made) == {5}
    made.on_device(published(active("acme", "gone")))
    assert serials(made) == set(), "an operator lets it in"


def test_a_serial_that_the_registry_alone_has_is_listed_until_its_device_is_resumed(own: OwnList) -> None:
    certificate = EnrolledCertificate(issuer=own.issuer, serial="f", not_after=MOMENT + DAY)
    made = core(own)
    entry = suspend(enrol(expected(), certificate, change()), change())
    made.on_device(published(entry))
    assert serials(made) == {15}
    made.on_device(published(resume(entry, change())))
    assert serials(made) == set()


def test_an_entry_that_names_the_certificate_of_another_device_changes_nothing_for_that_one(own: OwnList) -> None:
    made = core(own)
    made.on_issued("acme/bus-1", 15, AT_S + 1000, AT_S)
    certificate = EnrolledCertificate(issuer=own.issuer, serial="f", not_after=MOMENT + DAY)
    made.on_device(published(revoke(enrol(expected("zeta", "thief"), certificate, change()), change())))
    assert serials(made) == set()


def test_a_later_list_of_ours_revokes_nobody_whom_the_registry_lets_in(own: OwnList) -> None:
    former = own.update({5: Revoked(5, NOW), 6: Revoked(6, NOW)}, NOW)
    made = core(own, lets_in="acme/bus-1")
    made.on_issued("acme/bus-1", 5, AT_S + 1000, AT_S)
    made.on_own_list(former, AT_S)
    assert 6 in serials(made)
