"""The device registry: what may become of a device, and what holds when two change it at once."""

from typing import Any
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pydantic import ValidationError

from tests.examples import examples
from tests.identity.makers import CERTIFICATE, CHANGE, CLAIM, OTHER_CLAIM, active, change, changes, expected, published
from waybill.identity.registry import (
    ChangeRefused,
    Claim,
    DeviceChange,
    DeviceEntry,
    DeviceState,
    enrol,
    expect,
    expect_again,
    resume,
    revoke,
    suspend,
)
from waybill.identity.signatures import RANDOM_BITS, is_publication_id, next_publication_id

AGAIN = "--again gives it another claim"
REFUSED = pytest.raises(ChangeRefused)


class DeviceMachine(RuleBasedStateMachine):
    """One vehicle, whatever operators and the access daemon try with its devices, in whichever order."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, DeviceEntry] = {}
        self.past: dict[str, list[DeviceEntry]] = {}
        self.count = 0
        self._put(expected())

    def _put(self, entry: DeviceEntry) -> None:
        self.entries[entry.name] = entry
        self.past.setdefault(entry.name, []).append(entry)

    @rule(data=st.data(), what=st.sampled_from([suspend, resume, revoke]), how=changes)
    def change(self, data: Any, what: Any, how: DeviceChange) -> None:
        entry = data.draw(st.sampled_from(sorted(self.entries.values(), key=lambda one: one.name)))
        try:
            self._put(what(entry, how))
        except ChangeRefused:
            assert entry.is_ended or what is not revoke

    @rule(data=st.data(), how=changes)
    def enrol(self, data: Any, how: DeviceChange) -> None:
        entry = data.draw(st.sampled_from(sorted(self.entries.values(), key=lambda one: one.name)))
        try:
            self._put(enrol(entry, CERTIFICATE, how))
        except ChangeRefused:
            assert entry.state is not DeviceState.EXPECTED

    @invariant()
    def each_change_is_one_version_more(self) -> None:
        for past in self.past.values():
            assert [entry.version for entry in past] == list(range(1, len(past) + 1))

    @invariant()
    def what_ended_stays_ended_and_what_was_revoked_revoked(self) -> None:
        for past in self.past.values():
            states = [entry.state for entry in past if entry.is_ended]
            assert len({*states}) <= 1
            assert [entry.state for entry in past][len(past) - len(states) :] == states

    @invariant()
    def no_device_is_enrolled_twice(self) -> None:
        assert all(len(entry.certificates) <= 1 for entry in self.entries.values())


TestDeviceMachine = DeviceMachine.TestCase
TestDeviceMachine.settings = settings(max_examples=examples(30), stateful_step_count=15, deadline=None)


def test_a_device_that_is_known_is_refused_with_what_is_there() -> None:
    for held, said in ((expected(), f"expected already.*{AGAIN}"), (active(), f"it is active.*{AGAIN}")):
        with pytest.raises(ChangeRefused, match=said) as refused:
            expect("acme", "bus-1", region="us", claim=OTHER_CLAIM, change=CHANGE, held=held)
        assert (refused.value.device, refused.value.change) == ("acme/bus-1", "expect")


def test_a_device_whose_certificates_have_ended_gets_another_claim_and_one_that_is_good_keeps_it_from_that() -> None:
    enrolled, other = enrol(expected(), CERTIFICATE, CHANGE), OTHER_CLAIM
    with REFUSED:
        expect_again(enrolled, region="eu", claim=other, change=change(-1))
    again = expect_again(enrolled, region="us", claim=other, change=change())
    assert (again.state, again.claim, again.region, again.version) == (DeviceState.EXPECTED, other, "us", 3)
    assert enrol(again, CERTIFICATE, change()).certificates == (CERTIFICATE,)
    for held in (active(), suspend(expected(), CHANGE), revoke(enrolled, CHANGE)):
        with REFUSED:
            expect_again(held, region="eu", claim=other, change=change())


def test_what_is_resumed_goes_on_with_its_certificate_and_never_with_an_open_claim() -> None:
    for entry in (active(), enrol(expected(), CERTIFICATE, CHANGE)):
        assert resume(suspend(entry, CHANGE), CHANGE).state is DeviceState.ACTIVE
    # It may have been enrolled at the very moment at which it was suspended: both are its second version.
    at_once = [published(enrol(expected(), CERTIFICATE, CHANGE)), published(suspend(expected(), CHANGE))]
    holds = max(at_once, key=lambda one: one.precedence).entry
    resumed = resume(holds, CHANGE)
    assert (resumed.state, resumed.certificates) == (DeviceState.ACTIVE, ())
    with REFUSED:
        enrol(resumed, CERTIFICATE, CHANGE)


def test_a_device_that_was_suspended_before_it_enrolled_and_resumed_gets_another_claim() -> None:
    resumed = resume(suspend(expected(), CHANGE), CHANGE)
    assert resumed.state is DeviceState.ACTIVE
    again = expect_again(resumed, region="eu", claim=OTHER_CLAIM, change=change())
    assert (again.state, again.claim, again.version) == (DeviceState.EXPECTED, OTHER_CLAIM, 4)


def test_a_claim_of_a_token_is_called_by_its_hash_and_no_other_claim_is_called_so() -> None:
    for facts in ({"id": "SN-1", "password_hash": CLAIM.password_hash}, {"id": CLAIM.id}):
        with pytest.raises(ValidationError, match="called"):
            Claim.model_validate(facts)
    with pytest.raises(ValidationError, match="called"):
        Claim(id=CLAIM.id, password_hash=OTHER_CLAIM.password_hash)


@pytest.mark.parametrize("iterations", ["0", "10000", "999999999", "0101", ""])
def test_no_claim_has_a_broker_compute_for_seconds_at_each_connection(iterations: str) -> None:
    assert CLAIM.password_hash is not None
    with pytest.raises(ValidationError, match="password_hash"):
        Claim(id=CLAIM.id, password_hash=CLAIM.password_hash.replace("$101$", f"${iterations}$"))


clocks = st.integers(0, 2**47)
random_bits = st.integers(0, 2**RANDOM_BITS - 1)


@given(st.lists(st.tuples(clocks, random_bits), min_size=1))
def test_ids_that_are_drawn_one_after_the_other_sort_so_however_the_clock_jumps(drawn: list[tuple[int, int]]) -> None:
    ids: list[str] = []
    for now_ms, bits in drawn:
        ids.append(next_publication_id(ids[-1] if ids else None, now_ms, bits))
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(map(is_publication_id, ids))


@given(clocks, random_bits)
def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front(now_ms: int, bits: int) -> None:
    made = UUID(next_publication_id(None, now_ms, bits))
    assert (made.version, made.variant, made.int >> 80) == (7, RFC_4122, now_ms)


@pytest.mark.parametrize(
    "text", [None, "", "7", "0194F8A0-0000-7000-8000-000000000000", "0194f8a0-0000-4000-8000-000000000000", "{}"]
)
def test_what_does_not_sort_as_ids_do_is_none(text: str | None) -> None:
    assert not is_publication_id(text)


def test_after_the_last_id_there_is_none() -> None:
    with pytest.raises(ValueError, match="no publication id comes after"):
        next_publication_id("ffffffff-ffff-7fff-bfff-ffffffffffff", 0, 0)
    with pytest.raises(ValueError, match="is not a publication id"):
        next_publication_id("yesterday", 0, 0)
