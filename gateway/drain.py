"""Who is asked to pause, for how long, and whose batches are not taken before they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.config import Drain, TenantSettings
from gateway.pacing import Pacing
from gateway.validation import Sender


class DrainControl:
    """The pause that a device is asked for, from the operator's wish, the rates and the load.

    `jitter` gives numbers between 0 and 1.
    """

    def __init__(self, settings: Drain, tenants: Mapping[str, TenantSettings], jitter: Callable[[], float]) -> None:
        self._settings, self._jitter = settings, jitter
        self._pacing = Pacing(tenants, settings)

    def reconfigure(self, settings: Drain) -> None:
        """Go by other settings from now on."""
        self._settings = settings
        self._pacing.reconfigure(settings)

    def refusal_s(self, sender: Sender, size: int, now_s: float) -> float:
        """0 where the rates let a batch of so many bytes in; else the pause after which to send it again."""
        wait_s = self._pacing.refusal_s(sender, size, now_s)
        return self._spread(wait_s) if wait_s else 0.0

    def overload_s(self) -> float:
        """The pause that an overload asks for. Spread: devices that pause equally long come back together."""
        return self._spread(self._settings.overload_pause_s)

    def charge(self, sender: Sender, size: int, records: int, now_s: float) -> None:
        """A batch is taken: it counts for the rates of its device, its tenant and the region."""
        self._pacing.charge(sender, size, records, now_s)

    def pause_s(self, sender: Sender, *, load: float, waited_s: float, now_s: float) -> float:
        """How long the sender of a batch that is safe should pause, at most `max_pause_s`.

        `load`: how full the window is, 0 to 1. `waited_s`: how long the batch waited for Pulsar. A full window alone is
        good use of it; a full window that moves slowly is an overload.
        """
        settings = self._settings
        wanted = max(settings.pause_s, self._pacing.pause_s(sender, now_s))
        if load >= settings.overload_share and waited_s >= settings.overload_after_s:
            wanted = max(wanted, self.overload_s())
        return round(min(wanted, settings.max_pause_s), 3) if wanted else 0.0

    def _spread(self, pause_s: float) -> float:
        return round(min(pause_s * (0.5 + self._jitter()), self._settings.max_pause_s), 3)
