"""A change that a command has published, beside what holds by now: somebody else may have changed its devices. Pure.

What holds instead may be what was asked for, too: a device enrolled meanwhile, or two said the same. And what was as it
is to be when the command began may be so no more when it ends, minutes later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from waybill.identity.change_outcome import Became, DeviceOutcome, Published
from waybill.identity.errors import IdentityError
from waybill.identity.publication_id import drawn_ms
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import DevicePublication

Held = Callable[[str], DevicePublication | None]
"""What holds of a device now; None: it is not known."""


class AsItIs(IdentityError):
    """A device is as it is to be already: there is nothing to publish."""

    def __init__(self, device: str) -> None:
        super().__init__(f"{device} is as it is to be")
        self.device = device


class Anew(Protocol):
    """What is asked of devices, by what the registry has of each now."""

    def entry(self, name: str, held: DeviceEntry | None, /) -> DeviceEntry:
        """The entry of a device made anew (`held` None: it is not known). Raises AsItIs, and another IdentityError."""

    def is_so(self, name: str, held: DeviceEntry, /) -> bool:
        """Whether a device is as it is to be, whoever made it so."""


class StandingChange:
    """`beside`: devices that were as they are to be, by what held of them then."""

    def __init__(
        self, sent: Published, beside: Mapping[str, DevicePublication], held: Held, anew: Anew | None = None
    ) -> None:
        self.sent, self.beside = sent, beside
        self._held, self._anew = held, anew

    def gone(self, seen: Collection[str], lost: str = "") -> dict[str, DeviceOutcome]:
        """The devices of which something else holds, or of which nobody knows.

        `seen`: the ids that came back; `lost`: why others do not.
        """
        found = dict[str, DeviceOutcome]()
        for name, one in self.sent.made.items():
            now = self._held(name)
            is_back = now is not None and now.publication_id == one.publication_id
            if not is_back and one.publication_id not in seen:
                # Of what was cut short nothing is waited for: the cluster said that it has it.
                if self.sent.error is None:
                    why = f"it is published, and did not come back{lost and ': '}{lost}"
                    found[name] = DeviceOutcome(Became.UNKNOWN, why)
            elif self._is_other(name, one, now):
                found[name] = _outranked(now)
        for name, one in self.beside.items():
            if self._is_other(name, one, now := self._held(name)):
                found[name] = _outranked(now)
        return found

    def asked(self, since_ms: float) -> dict[str, DevicePublication]:
        """What the regions are to have in force: what holds of each device that is as it is to be.

        Whoever published it: of what holds no more no region says anything. `since_ms`: of what was there before and is
        older nothing is asked.
        """
        found = dict[str, DevicePublication]()
        for name, one in {**self.beside, **self.sent.made}.items():
            now = self._held(name)
            if now is None or self._is_other(name, one, now):
                continue
            if name in self.sent.made or drawn_ms(now.publication_id) >= since_ms:
                found[name] = now
        return found

    def _is_other(self, name: str, one: DevicePublication, now: DevicePublication | None) -> bool:
        if now is None or now.publication_id == one.publication_id:
            return False
        return self._anew is None or not self._anew.is_so(name, now.entry)


def _outranked(now: DevicePublication | None) -> DeviceOutcome:
    assert now is not None, "something else holds"
    holds = f"{now.entry.state}, version {now.entry.version} by {now.entry.changed_by}"
    return DeviceOutcome(Became.OUTRANKED, f"another change of the same moment holds: {holds}")
