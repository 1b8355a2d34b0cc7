"""Who is asked to pause."""

from __future__ import annotations

from gateway.config import Drain, TenantSettings
from gateway.engine import DrainControl
from gateway.inflight import Sender

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
    made = control(Drain(overload_share=0.9, overload_after_s=1, overload_pause_s=4))
    assert made.pause_s(D1, load=1.0, waited_s=0.5, now_s=0.0) == 0.0
    assert made.pause_s(D1, load=0.5, waited_s=5.0, now_s=0.0) == 0.0
    assert made.pause_s(D1, load=1.0, waited_s=1.0, now_s=0.0) == 4.0
