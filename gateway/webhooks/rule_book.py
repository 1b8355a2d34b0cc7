"""The alert rules in force by account, the devices of accounts, and the webhooks of a notification. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import AccountUnusable
from gateway.webhooks.notification import Notification
from geo.alerts import AlertRule
from geo.reference.in_force import HeldVersion, Usable
from geo.reference.moments import Moment

# Devices of each account at a time. Pure.

MAX_LEVELS: Final = 16
"""The most levels of accounts below a payer."""
# an assignment without an end
EVER: Final = (1 << 63) - 1
_Name = Annotated[str, Field(min_length=1, max_length=63)]


class DeviceTime(BaseModel):
    """A device of an account, from `begin` to `end` (excluded; None: for good)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tenant: _Name
    device: _Name
    begin: Moment
    end: Moment | None = None


class StatedDevices(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    id: _Name
    effective_from: Moment
    parent: _Name | None = None
    devices: tuple[DeviceTime, ...] = ()


class _Version(NamedTuple):
    begin_ms: int
    parent: str | None


class _DevicePeriod(NamedTuple):
    begin_ms: int
    end_ms: int
    account: str


def usable_devices(body: str) -> Usable[StatedDevices]:
    """The devices of an account's text, with its begin (ms since 1970). Raises AccountUnusable."""
    try:
        made = StatedDevices.model_validate_json(body)
    except ValidationError as error:
        raise AccountUnusable(f"the devices of the account cannot be read: {error.error_count()} faults") from error
    return Usable(_ms(made.effective_from), made)


class AccountDevices:
    def __init__(self, held: Iterable[HeldVersion[StatedDevices]] = ()) -> None:
        versions = defaultdict[str, list[StatedDevices]](list)
        for one in held:
            versions[one.made.id].append(one.made)
        self._versions: dict[str, list[_Version]] = {}
        self._held = defaultdict[tuple[str, str], list[_DevicePeriod]](list)
        for name, several in versions.items():
            # a version names all devices of the account, and ends where the next one begins
            several.sort(key=lambda one: one.effective_from)
            self._versions[name] = [_Version(_ms(one.effective_from), one.parent) for one in several]
            for number, version in enumerate(several):
                begins = self._versions[name]
                until = begins[number + 1].begin_ms if number + 1 < len(begins) else EVER
                for key, assigned in _assigned(version, begins[number].begin_ms, until):
                    self._held[key].append(assigned)

    def __len__(self) -> int:
        return len(self._held)

    def accounts_of(self, tenant: str, device: str, t_ms: int) -> frozenset[str]:
        """The accounts that have a device at a moment, and the accounts above them."""
        found: set[str] = set()
        for one in self._held.get((tenant, device), ()):
            if one.begin_ms <= t_ms < one.end_ms:
                found.update(self._upwards(one.account, t_ms))
        return frozenset(found)

    def _upwards(self, account: str, t_ms: int) -> Iterator[str]:
        name: str | None = account
        # bounded, as a published parent may be its own child
        for _ in range(MAX_LEVELS + 1):
            if name is None:
                return
            yield name
            versions = self._versions.get(name, [])
            at = bisect_right(versions, t_ms, key=lambda one: one.begin_ms)
            name = versions[at - 1].parent if at else None


def _assigned(version: StatedDevices, since_ms: int, until_ms: int) -> Iterator[tuple[tuple[str, str], _DevicePeriod]]:
    for one in version.devices:
        begin = max(_ms(one.begin), since_ms)
        end = min(EVER if one.end is None else _ms(one.end), until_ms)
        # a device that was given away before this version is none of its devices
        if begin < end:
            yield (one.tenant, one.device), _DevicePeriod(begin, end, version.id)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class _RuleVersion(NamedTuple):
    begin_ms: int
    rule: AlertRule


class RuleBook:
    def __init__(self, held: Iterable[HeldVersion[AlertRule]] = ()) -> None:
        self._versions = defaultdict[str, list[_RuleVersion]](list)
        self._of_account = defaultdict[str, list[str]](list)
        for one in held:
            self._versions[one.made.id].append(_RuleVersion(one.begin, one.made))
        for name, versions in sorted(self._versions.items()):
            versions.sort(key=lambda one: one.begin_ms)
            # the id contains the account
            self._of_account[versions[0].rule.account].append(name)

    def __len__(self) -> int:
        return len(self._versions)

    def at(self, name: str, t_ms: int) -> AlertRule | None:
        """The version of a rule in force at a moment, if it is enabled."""
        versions = self._versions.get(name, [])
        at = bisect_right(versions, t_ms, key=lambda one: one.begin_ms)
        found = versions[at - 1].rule if at else None
        return found if found is not None and found.enabled else None

    def summarising(self, name: str, now_ms: int) -> AlertRule | None:
        """The version of a rule that makes a digest of its held-back messages; None: no version wants one.

        It is the last version that wants a digest, or the first one to come. A later version without digests does not
        take the digest back.
        """
        wanting = [one for one in self._versions.get(name, ()) if one.rule.enabled and one.rule.digest]
        before = [one.rule for one in wanting if one.begin_ms <= now_ms]
        return before[-1] if before else next((one.rule for one in wanting), None)

    def of_accounts(self, accounts: Iterable[str], t_ms: int) -> Iterator[AlertRule]:
        """The rules of some accounts in force at a moment, by id."""
        for name in sorted(name for account in accounts for name in self._of_account.get(account, ())):
            if (rule := self.at(name, t_ms)) is not None:
                yield rule


def routes(notification: Notification, rules: RuleBook, accounts: AccountDevices) -> dict[str, list[AlertRule]]:
    """The rules that a notification is for, by webhook.

    It goes to the accounts that had the device at the time of the event, also by earlier messages about it: an account
    that received something must receive the correction. The rules are those in force when it was said, so that a
    message that comes again takes the same routes. A withdrawal that does not name the event goes to every rule of the
    account.
    """
    found = defaultdict[str, list[AlertRule]](list)
    owners = frozenset[str]().union(
        *(
            accounts.accounts_of(notification.tenant, notification.device, t_ms)
            for t_ms in (notification.t_ms, *notification.earlier_ms)
        )
    )
    for rule in rules.of_accounts(owners, notification.said_ms):
        kind, place = notification.kind, notification.place
        # a needless withdrawal is better than a missed one
        is_about = kind is None or place is None or rule.matches(kind, place)
        if is_about and rule.hears(is_verdict=notification.is_verdict):
            found[rule.webhook].append(rule)
    return dict(found)
