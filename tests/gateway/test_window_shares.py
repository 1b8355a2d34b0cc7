"""However many tenants are stuck, the window has a bound in sum, and who flows goes through."""

from itertools import count
from typing import Any

import pytest

from gateway.engine import WindowShares
from gateway.inflight import Delivery, InFlight, Sender
from tests.gateway.strategies import settings

WINDOW, BATCHES, STUCK = 16 << 20, 1000, 50
MANY: dict[str, Any] = {
    "tenants": {f"t{n}": {} for n in range(STUCK + 1)},
    "pulsar": {"service_url": "pulsar://127.0.0.1:6650"},
    "mqtt": {"host": "h", "receive_maximum": BATCHES, "max_in_flight_bytes": WINDOW},
}


class Window:
    """A window in which batches of one size are taken as an engine takes them."""

    def __init__(self, size: int, **changes: Any) -> None:
        self.size, self.in_flight, self.shares = size, InFlight(), WindowShares(settings(**MANY | changes))
        self.now_s, self._tokens = 0.0, count(1)

    def try_take(self, tenant: str) -> int | None:
        """The token of one more batch; None: it is turned away."""
        if self.shares.is_spent(tenant, self.size, self.in_flight):
            return None
        token = next(self._tokens)
        payload = token.to_bytes(4) + bytes(self.size - 4)
        sender = Sender(tenant, "d")
        self.in_flight.add(Delivery(token=token, sender=sender, topic="", payload=payload, arrived_s=self.now_s), 0)
        return token

    def fill(self, tenants: list[str]) -> None:
        while tenants and self.shares.has_room(self.in_flight):
            first, *others = tenants
            tenants = others if self.try_take(first) is None else [*others, first]

    def find_stuck(self) -> None:
        self.now_s += 1
        self.shares.find_stuck(self.in_flight, self.now_s, {f"t{STUCK}"})


@pytest.mark.parametrize("at_once", [1, 7, STUCK])
@pytest.mark.parametrize("size", [100, 100_000, 1_000_000])
def test_what_is_in_flight_has_a_bound_in_sum_and_a_tenant_that_flows_goes_through(at_once: int, size: int) -> None:
    window = Window(size)
    for _ in range(STUCK):
        # Some more get stuck, and those that are already go on sending.
        stuck = len(window.in_flight.stuck)
        window.fill([f"t{n}" for n in range(STUCK) if f"t{n}" not in window.in_flight.stuck][:at_once])
        window.find_stuck()
        assert len(window.in_flight.stuck) > stuck or stuck == STUCK, "each makes room for the next"
        window.fill(sorted(window.in_flight.stuck))
    in_flight = window.in_flight
    assert len(in_flight.stuck) == STUCK
    assert len(in_flight) <= 4 * BATCHES
    assert in_flight.bytes <= 2 * WINDOW + (STUCK + 1) * size
    assert in_flight.stuck_use.bytes == in_flight.bytes
    for _ in range(3):
        assert window.shares.has_room(in_flight)
        token = window.try_take(f"t{STUCK}")
        assert token is not None
        in_flight.remove(token)
    assert in_flight.stuck_use.bytes == in_flight.bytes
