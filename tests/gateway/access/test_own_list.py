"""The region's own revocation list: by whatever clock, whatever an entry says, and from whatever copy of the disk."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access.config import AuthorityPlace
from gateway.access.core import AccessCore
from gateway.access.loop import FOLLOW_S, ListIntake
from gateway.access.revocation import ListRefused, OwnList, RevocationList, lists_in, next_list, read_list_message
from tests.identity.makers import MOMENT, active, change, expected, published
from waybill.identity.authority import MAX_PEM_BYTES, Revoked
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.registry import EnrolledCertificate, enrol, resume, revoke, suspend
from waybill.pulsar.compacted_topic import TopicMessage

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


def test_a_device_whose_serial_the_registry_alone_has_is_denied_by_name_until_it_is_resumed(own: OwnList) -> None:
    # As where the authority's folder was restored: whoever signs entries may name any serial, so it is not listed.
    certificate = EnrolledCertificate(issuer=own.issuer, serial="f", not_after=MOMENT + DAY)
    made = core(own)
    made.on_ready()
    entry = suspend(enrol(expected(), certificate, change()), change())
    for one, denied in ((entry, {entry.name}), (resume(entry, change()), set())):
        made.on_device(published(one))
        step = made.take_step(AT_S + 1)
        assert step is not None
        assert ({*step.denied}, step.revoked) == (denied, {})


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


class MadeAnew:
    """A region whose authority was made anew under the same root: `former` is what is left of the one before."""

    def __init__(self, folder: Path, former: dict[str, RevocationList] | None = None) -> None:
        root = AuthorityFolder.create_root(folder / "root", "root", now=NOW, lifetime=3000 * DAY)
        for name in ("before", "present"):
            AuthorityFolder.create_regional(folder / name, root, "eu", now=NOW, lifetime=2000 * DAY)
        self.before = OwnList(AuthorityPlace(folder=folder / "before"), {})
        self.own = OwnList(AuthorityPlace(folder=folder / "present"), former or {})
        self.core = AccessCore(self.own.issuer)
        self.intake = ListIntake(self.core, self.own, root.authority.certificate)

    def hear(self, found: RevocationList, after_s: float = 0) -> None:
        self.intake.take(TopicMessage(found.issuer, found.message, {}, 0), NOW.timestamp() + after_s)

    def is_by_present_key(self, found: RevocationList) -> bool:
        return found.is_signed_by(self.own.folder.authority)


def test_a_list_by_the_key_of_a_former_authority_gives_number_and_serials_and_is_signed_anew(tmp_path: Path) -> None:
    region = MadeAnew(tmp_path)
    for serial in range(5, 9):
        left = region.before.update({serial: Revoked(serial, NOW)}, NOW)
    region.hear(left)
    # The tick comes before the registry was read to its end, a step behind it.
    assert region.own.is_due(NOW)
    region.core.on_ready()
    step = region.core.take_step(NOW.timestamp())
    assert step is not None
    made = region.own.update(step.revoked, NOW)
    assert made.serials == left.serials
    assert made.number == left.number + 1
    assert region.is_by_present_key(made)
    assert made.is_later(left)
    assert made.certificate_pem != left.certificate_pem
    assert not region.own.is_due(NOW)


def test_a_list_by_another_key_that_is_as_late_as_ours_is_followed_too(tmp_path: Path) -> None:
    region = MadeAnew(tmp_path)
    ours, left = region.own.update({}, NOW), region.before.update({}, NOW)
    assert not left.is_later(ours)
    region.hear(left)
    assert region.own.update(None, NOW).number == left.number + 1


def test_two_daemons_of_one_name_answer_each_other_at_a_pace(tmp_path: Path) -> None:
    region = MadeAnew(tmp_path)
    region.own.update({}, NOW)
    answers = 0
    for second in range(20 * int(FOLLOW_S)):
        assert region.own.current is not None
        region.before.follow(region.own.current)
        region.hear(region.before.update(None, NOW), second)
        answers += region.own.is_due(NOW)
        region.own.update(None, NOW)
    assert 15 < answers < 25


def test_what_comes_back_of_our_own_is_no_other_daemon(tmp_path: Path) -> None:
    region = MadeAnew(tmp_path)
    older = region.own.update({5: Revoked(5, NOW)}, NOW)
    newer = region.own.update({5: Revoked(5, NOW), 6: Revoked(6, NOW)}, NOW)
    for one in (older, newer, older, newer):
        region.hear(one)
        assert region.own.current == newer


LIFE = timedelta(days=30)
ENTRIES = 20_000


def test_a_list_of_20_000_certificates_is_taken_from_another_region_and_comes_back_from_the_file(
    tmp_path: Path,
) -> None:
    root = AuthorityFolder.create_root(tmp_path / "root", "root", now=NOW, lifetime=LIFE)
    us = AuthorityFolder.create_regional(tmp_path / "us", root, "us", now=NOW, lifetime=LIFE)
    # Serials as long as real ones.
    revoked = [Revoked((1 << 158) + number, NOW) for number in range(ENTRIES)]
    made = next_list(us.authority, revoked, None, now=NOW, life=LIFE)
    assert len(made.message) > 10 * MAX_PEM_BYTES

    core = AccessCore("Waybill regional authority eu")
    core.on_ready()
    found = read_list_message(made.issuer, made.message, root.authority.certificate)
    assert core.on_list(found, NOW.timestamp())
    step = core.take_step(NOW.timestamp() + 10)
    assert step is not None
    (merged,) = step.lists
    assert len(merged.serials) == ENTRIES
    assert lists_in(merged.pem)[made.issuer].serials == merged.serials


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuthorityFolder, AuthorityFolder, AuthorityFolder]:
    folder = tmp_path_factory.mktemp("authorities")
    root, other = (AuthorityFolder.create_root(folder / name, name, now=NOW, lifetime=LIFE) for name in ("a", "b"))
    return (
        root,
        AuthorityFolder.create_regional(folder / "eu", root, "eu", now=NOW, lifetime=LIFE),
        AuthorityFolder.create_regional(folder / "eu-of-b", other, "eu", now=NOW, lifetime=LIFE),
    )


Three = tuple[AuthorityFolder, AuthorityFolder, AuthorityFolder]


def test_each_list_is_later_than_the_former_one_also_within_a_second(authorities: Three) -> None:
    _, eu, _ = authorities
    first = next_list(eu.authority, [], None, now=NOW, life=LIFE)
    second = next_list(eu.authority, [Revoked(5, NOW)], first, now=NOW, life=LIFE)
    assert second.is_later(first)
    assert not first.is_later(second)
    assert second.this_update - first.this_update >= timedelta(seconds=1)
    assert (second.number, second.serials) == (2, frozenset({5}))


def test_a_list_of_an_authority_of_the_root_is_taken_and_one_of_another_root_is_not(authorities: Three) -> None:
    root, eu, stranger = authorities
    made = next_list(eu.authority, [Revoked(5, NOW)], None, now=NOW, life=LIFE)
    assert read_list_message(made.issuer, made.message, root.authority.certificate) == made
    forged = next_list(stranger.authority, [Revoked(5, NOW)], None, now=NOW, life=LIFE)
    assert forged.issuer == made.issuer
    with pytest.raises(ListRefused):
        read_list_message(forged.issuer, forged.message, root.authority.certificate)
    with pytest.raises(ListRefused):
        read_list_message(made.issuer, made.certificate_pem + forged.pem, root.authority.certificate)
    with pytest.raises(ListRefused, match="its issuer is"):
        read_list_message("another", made.message, root.authority.certificate)
