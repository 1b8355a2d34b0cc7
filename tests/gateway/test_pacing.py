"""Laws of the rates: nobody starves, nobody has more than its share while others wait, nothing is left over.

Devices come when their pauses are over, as agents do; or at once, all the time, as nobody should.
"""

import heapq
import random
from collections import Counter
from collections.abc import Collection, Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.config import Drain, SendRates, TenantSettings
from gateway.engine import DrainControl
from gateway.inflight import Sender
from gateway.pacing import MAX_PACED, Pacing, cost_s
from tests.examples import examples

SIZE, RECORDS = 2000, 20
NO_DRAIN = Drain()


def run(
    tenants: Mapping[str, TenantSettings],
    fleets: Mapping[str, int],
    until_s: float,
    *,
    drain: Drain = NO_DRAIN,
    deaf: Collection[Sender] = (),
    from_s: float = 0.0,
    seed: int = 1,
) -> Counter[Sender]:
    """Batches that were taken of each device from a moment on; every device has a backlog without an end."""
    chance, pacing = random.Random(seed), Pacing(tenants, drain)
    senders = [Sender(tenant, f"d{number}") for tenant, count in fleets.items() for number in range(count)]
    due = [(chance.uniform(0, 0.5), number) for number in range(len(senders))]
    heapq.heapify(due)
    taken: Counter[Sender] = Counter()
    while due[0][0] < until_s:
        now_s, number = due[0]
        sender = senders[number]
        if wait_s := pacing.refusal_s(sender, SIZE, now_s):
            wait_s *= chance.uniform(0.5, 1.5)
        else:
            pacing.charge(sender, SIZE, RECORDS, now_s)
            wait_s = pacing.pause_s(sender, now_s)
            taken[sender] += now_s >= from_s
        heapq.heapreplace(due, (now_s + 0.05 + (0.0 if sender in deaf else wait_s), number))
    return taken


def of_tenants(taken: Counter[Sender]) -> Counter[str]:
    found: Counter[str] = Counter()
    for sender, batches in taken.items():
        found[sender.tenant] += batches
    return found


@settings(max_examples=examples(40), deadline=None)
@given(rate=st.integers(20, 400), devices=st.integers(2, 60), seed=st.integers(0, 9))
@example(rate=232, devices=12, seed=2)  # a little less than they would take without a pause
def test_devices_of_a_tenant_have_its_rate_in_equal_parts(rate: int, devices: int, seed: int) -> None:
    tenants = {"a": TenantSettings(max_batches_per_s=rate)}
    taken = run(tenants, {"a": devices}, 80, from_s=20, seed=seed)
    wanted = min(rate, devices / 0.05) * 60 / devices
    assert len(taken) == devices
    assert min(taken.values()) >= 0.9 * wanted - 2
    assert max(taken.values()) <= 1.1 * wanted + 2
    assert 0.97 * wanted * devices <= sum(taken.values()) <= 60 * rate + 3 * rate


@settings(max_examples=examples(40), deadline=None)
@given(
    weights=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=2, max_size=4),
    devices=st.lists(st.integers(5, 60), min_size=4, max_size=4),
)
def test_tenants_that_wait_have_the_region_s_rate_by_their_weights(weights: list[float], devices: list[int]) -> None:
    tenants = {f"t{number}": TenantSettings(weight=weight) for number, weight in enumerate(weights)}
    drain = Drain(max_records_per_s=200 * RECORDS, burst_records=200 * RECORDS)
    taken = of_tenants(run(tenants, dict(zip(tenants, devices, strict=False)), 120, drain=drain, from_s=40))
    for name, one in tenants.items():
        wanted = 200 * 80 * one.weight / sum(weights)
        possible = devices[int(name[1:])] / 0.05 * 80
        assert 0.6 * min(wanted, possible) <= taken[name], (name, wanted, taken)
    assert 0.8 * 200 * 80 <= sum(taken.values()) <= 200 * 84


def test_what_one_tenant_may_not_have_or_does_not_want_the_others_have() -> None:
    tenants = {"small": TenantSettings(max_batches_per_s=10), "large": TenantSettings(), "silent": TenantSettings()}
    drain = Drain(max_records_per_s=200 * RECORDS, burst_records=200 * RECORDS)
    taken = of_tenants(run(tenants, {"small": 10, "large": 100}, 140, drain=drain, from_s=40))
    assert taken["small"] == pytest.approx(1000, rel=0.1)
    assert taken["large"] == pytest.approx(19_000, rel=0.1)


def test_a_device_that_ignores_its_pauses_has_little_more_than_its_share() -> None:
    hostile = Sender("a", "d0")
    tenants = {"a": TenantSettings(max_batches_per_s=100)}
    taken = run(tenants, {"a": 50}, 100, from_s=20, deaf={hostile})
    others = [batches for sender, batches in taken.items() if sender != hostile]
    assert taken[hostile] <= 1.3 * max(others)
    assert min(others) >= 0.9 * 2 * 80


def test_a_batch_costs_what_it_uses_most_of() -> None:
    rates = SendRates(max_batches_per_s=10, max_bytes_per_s=1000, max_records_per_s=100)
    assert cost_s(rates, 50, 5) == 0.1
    assert cost_s(rates, 500, 5) == 0.5
    assert cost_s(rates, 50, 90) == 0.9
    assert cost_s(SendRates(), 10**9, 10**9) == 0.0


def test_devices_whose_debts_are_paid_take_no_memory_and_of_others_there_is_a_bound() -> None:
    pacing = Pacing({"a": TenantSettings(device=SendRates(max_batches_per_s=10))}, NO_DRAIN)
    for number in range(5000):
        pacing.charge(Sender("a", f"d{number}"), SIZE, RECORDS, number * 0.01)
    assert len(pacing._devices) < 400
    for number in range(MAX_PACED + 1000):
        pacing.charge(Sender("a", f"e{number}"), SIZE, RECORDS, 1000.0)
    assert len(pacing._devices) <= MAX_PACED + 1


D1 = Sender("fleet", "d1")


def control(drain: Drain, **tenants: TenantSettings) -> DrainControl:
    return DrainControl(drain, tenants, lambda: 0.5)


def sent(control: DrainControl, records: int, now_s: float = 0.0, sender: Sender = D1) -> float:
    control.charge(sender, 100, records, now_s)
    return control.pause_s(sender, load=0.0, waited_s=0.0, now_s=now_s)


def test_the_operator_s_pause_holds_for_everybody_until_it_is_taken_back() -> None:
    made = control(Drain(pause_s=30))
    assert sent(made, 1) == 30
    made.reconfigure(Drain())
    assert sent(made, 1, now_s=1.0) == 0.0


def test_a_full_window_is_an_overload_only_when_it_moves_slowly() -> None:
    made = control(Drain())
    assert made.pause_s(D1, load=1.0, waited_s=0.5, now_s=0.0) == 0.0
    assert made.pause_s(D1, load=0.5, waited_s=5.0, now_s=0.0) == 0.0
    assert made.pause_s(D1, load=1.0, waited_s=1.0, now_s=0.0) == 5.0
