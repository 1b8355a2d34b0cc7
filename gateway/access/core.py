"""The access daemon's state: registry and lists in, steps for the broker out. Pure: no files, signals, sockets or
clock.

    a device changed ──▶ step: rules, lists ──▶ reload ──▶ sessions ended ──▶ confirmed ──▶ looked at again

The broker's target state follows from the registry and the lists alone. A daemon that is killed in the middle of
a step repeats the whole step. Nothing is denied or allowed before the registry was read to its end.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cryptography.x509 import ReasonFlags

from gateway.access.revocation import MAX_LISTS, RevocationList
from waybill.identity.authority import Revoked
from waybill.identity.broker_conf import MAX_DENIED
from waybill.identity.registry import DeviceState
from waybill.identity.registry_messages import DevicePublication

MAX_CONFIRMED: Final = 1000
"""Changes that one step confirms, and changes from before a start that are confirmed (the last ones)."""
MAX_UNCONFIRMED: Final = 20_000
"""Changes that wait to be confirmed. Beyond that the oldest ones are in force without a confirmation."""
MAX_ENDED: Final = 2000
"""Sessions that end in one step, the latest first, so that new ones do not wait for a backlog."""
# Certificates stay on the list after their end, for brokers with a slow clock.
_PRUNE_S: Final = 3600.0
_REASONS: Final = {
    DeviceState.SUSPENDED: ReasonFlags.certificate_hold,
    DeviceState.REVOKED: ReasonFlags.privilege_withdrawn,
}


class KnownDevice(NamedTuple):
    """A device that may not connect. `ends_s`: when its last certificate ends; inf: no certificate is known.

    `certificates`: those that its entry names, as issuer, serial and end. `has_claim`: it was not registered by hand.
    """

    state: DeviceState
    changed_s: float
    ends_s: float
    certificates: tuple[tuple[str, int, float], ...]
    has_claim: bool


class Confirmation(NamedTuple):
    """A registry publication that is in force at this region's broker."""

    device: str
    publication_id: str


class BrokerStep(NamedTuple):
    """The broker's target state, and the sessions to end.

    `denied`: names in the rules. `revoked`: the region's own list, by serial. `lists`: those of other issuers.
    `left_open`: devices that neither the rules nor a list keep out, because the rules have no room for them. Their
    changes are not confirmed.
    """

    denied: frozenset[str]
    revoked: dict[int, Revoked]
    lists: tuple[RevocationList, ...]
    end: tuple[str, ...]
    confirm: tuple[Confirmation, ...]
    left_open: frozenset[str] = frozenset()


class AccessCore:
    """The target state of one region's broker. Times are seconds since 1970."""

    def __init__(self, own_issuer: str = "", may_connect: Callable[[str], bool] = lambda _: False) -> None:
        """`own_issuer`: the region's authority. `may_connect`: whether the registry lets a device in."""
        self._own_issuer, self._may_connect = own_issuer, may_connect
        self._closed: dict[str, KnownDevice] = {}
        self._issued: dict[str, dict[int, float]] = {}
        self._owner: dict[int, str] = {}
        self._revoked: dict[int, Revoked] = {}
        self._lists: dict[str, RevocationList] = {}
        self._to_end: dict[str, None] = {}
        self._to_confirm: OrderedDict[str, str] = OrderedDict()
        self._is_due = False
        self._forget_at_s: float | None = None
        self._pruned_s = 0.0
        self.is_ready = False
        self.changes = 0
        self.left_open = 0

    @property
    def closed_devices(self) -> int:
        """How many devices may not connect."""
        return len(self._closed)

    @property
    def problem(self) -> str:
        """That only the gateway keeps some devices out; "" if there are none."""
        if not self.left_open:
            return ""
        return (
            f"{self.left_open} devices that may not connect are neither among the {MAX_DENIED} denied by name nor on"
            " a list: the gateway refuses what they send, and nothing is confirmed"
        )

    @property
    def revoked_certificates(self) -> int:
        return len(self._revoked)

    def on_device(self, publication: DevicePublication) -> None:
        """A registry publication was accepted."""
        entry = publication.entry
        name = entry.name
        if entry.may_connect:
            # Resumed before its session was ended: keep the session.
            self._closed.pop(name, None)
            self._to_end.pop(name, None)
        else:
            ends = [one.not_after.timestamp() for one in entry.certificates]
            ends_s = max([*ends, *self._issued.get(name, {}).values()], default=math.inf)
            named = tuple((one.issuer, int(one.serial, 16), one.not_after.timestamp()) for one in entry.certificates)
            has_claim = entry.claim is not None
            self._closed[name] = KnownDevice(entry.state, entry.changed_at.timestamp(), ends_s, named, has_claim)
            self._to_end[name] = None
        # Only certificates that the authority signed for it: an entry may name another device's serial.
        self._put_on_list(name)
        self._to_confirm[name] = publication.publication_id
        self._to_confirm.move_to_end(name)
        if len(self._to_confirm) > (MAX_UNCONFIRMED if self.is_ready else MAX_CONFIRMED):
            self._to_confirm.popitem(last=False)
        self._change()

    def on_issued(self, name: str, serial: int, not_after_s: float, now_s: float) -> None:
        """The region's authority signed a certificate for a device."""
        if not_after_s <= now_s:
            return
        # A revocation names a device, a list has serials. Only the authority says whose serial it is.
        self._owner[serial] = name
        self._issued.setdefault(name, {})[serial] = not_after_s
        # It may be on the list from before a start, when its device was not known.
        if self._may_connect(name) and self._revoked.pop(serial, None) is not None:
            self._change()
        # Signed while the device was revoked, or found after a start.
        if (known := self._closed.get(name)) is not None:
            ends_s = not_after_s if math.isinf(known.ends_s) else max(known.ends_s, not_after_s)
            self._closed[name] = known._replace(ends_s=ends_s)
            self._put_on_list(name)
            self._change()

    def on_own_list(self, found: RevocationList, now_s: float) -> None:
        """An earlier list of the region's authority: its serials stay until their device is let in or they end."""
        at = datetime.fromtimestamp(int(now_s), UTC)
        for serial in found.serials - self._revoked.keys():
            if not self._may_connect(self._owner.get(serial, "")):
                self._revoked[serial] = Revoked(serial, at)
        self._change()

    def on_list(self, found: RevocationList, now_s: float) -> bool:
        """Another region's list; whether it is accepted, because it is later and there is room.

        Devices that the former list let in lose their sessions by name, as far as names are known here.
        """
        former = self._lists.get(found.issuer)
        if found.issuer == self._own_issuer or not found.is_later(former):
            return False
        if former is None and len(self._lists) >= MAX_LISTS:
            return False
        self._lists[found.issuer] = found
        if found.serials - (former.serials if former is not None else frozenset()):
            # A device may have connected while its certificate was on no list here.
            self._to_end |= dict.fromkeys(name for name, known in self._closed.items() if known.changed_s > now_s - 60)
        self._change()
        return True

    def on_ready(self) -> None:
        """The registry was read to its end: steps may begin."""
        if not self.is_ready:
            self.is_ready = True
            self._change()

    def on_broker(self) -> None:
        """The broker was started again, perhaps with older files: the whole step is due."""
        self._to_end |= dict.fromkeys(self._closed)
        self._change()

    def is_closed(self, name: str) -> bool:
        return name in self._closed

    def take_step(self, now_s: float) -> BrokerStep | None:
        """The next step, or None if nothing changed. It counts as done unless `on_failed` is called."""
        is_to_forget = self._forget_at_s is not None and now_s >= self._forget_at_s
        if not self.is_ready or not (self._is_due or is_to_forget):
            return None
        self._is_due = False
        self._prune(now_s)
        # Devices that no list keeps out come first, the latest changes before others.
        named = sorted(
            (not self._is_missed(name, now_s), -self._closed[name].changed_s, name)
            for name in self._closed
            if self._denied_until_s(name) > now_s
        )
        denied = [name for _, _, name in named[:MAX_DENIED]]
        left_open = frozenset(name for is_listed, _, name in named[MAX_DENIED:] if not is_listed)
        self.left_open = len(left_open)
        forget_at_s = min((self._denied_until_s(name) for name in denied), default=math.inf)
        self._forget_at_s = forget_at_s if math.isfinite(forget_at_s) else None
        end = tuple(self._to_end.popitem()[0] for _ in range(min(MAX_ENDED, len(self._to_end))))
        if self._to_end:
            self._change()
        in_force = [Confirmation(*one) for one in self._to_confirm.items() if one[0] not in left_open]
        confirm = tuple(in_force[:MAX_CONFIRMED])
        for device, _ in confirm:
            del self._to_confirm[device]
        if len(in_force) > len(confirm):
            self._change()
        lists = tuple(self._lists[issuer] for issuer in sorted(self._lists))
        return BrokerStep(frozenset(denied), dict(self._revoked), lists, end, confirm, left_open)

    def on_failed(self, step: BrokerStep) -> None:
        """The step was not completed: all of it is due again."""
        # A device that was resumed meanwhile keeps its session.
        self._to_end |= dict.fromkeys(name for name in step.end if name in self._closed)
        for device, publication_id in step.confirm:
            self._to_confirm.setdefault(device, publication_id)
        self._change()

    def _change(self) -> None:
        self._is_due = True
        self.changes += 1

    def _denied_until_s(self, name: str) -> float:
        """When no certificate of a device is valid any more, also by a slow clock; inf if none is known."""
        return self._closed[name].ends_s + _PRUNE_S

    def _is_missed(self, name: str, now_s: float) -> bool:
        """Whether a certificate that the device has, or may have, is on no list.

        A device without a claim got its certificate by hand. One that never used its claim has none.
        """
        known = self._closed[name]
        if math.isinf(known.ends_s):
            return not known.has_claim
        return any(
            end_s + _PRUNE_S > now_s and not self._is_listed(issuer, serial)
            for issuer, serial, end_s in known.certificates
        )

    def _is_listed(self, issuer: str, serial: int) -> bool:
        if issuer == self._own_issuer:
            return serial in self._revoked
        return (found := self._lists.get(issuer)) is not None and serial in found.serials

    def _put_on_list(self, name: str) -> None:
        """Put a device's certificates on the region's own list, or remove them."""
        known = self._closed.get(name)
        # Removed first, because the reason may have changed.
        for serial in self._issued.get(name, ()):
            self._revoked.pop(serial, None)
            if known is not None:
                at = datetime.fromtimestamp(int(known.changed_s), UTC)
                self._revoked[serial] = Revoked(serial, at, _REASONS[known.state])

    def _prune(self, now_s: float) -> None:
        """Remove certificates an hour after their end; the hour is for brokers with a slow clock."""
        before_s = now_s - _PRUNE_S
        # In both directions: a clock that was set back must not delay it.
        if abs(now_s - self._pruned_s) < _PRUNE_S:
            return
        self._pruned_s = now_s
        for name in [name for name, issued in self._issued.items() if min(issued.values(), default=0) < before_s]:
            issued = self._issued[name]
            for serial in [serial for serial, end_s in issued.items() if end_s < before_s]:
                del issued[serial], self._owner[serial]
                self._revoked.pop(serial, None)
            if not issued:
                del self._issued[name]
