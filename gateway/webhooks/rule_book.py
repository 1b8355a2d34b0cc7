"""The alert rules in force at a time, by account, and where a notification goes by them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gateway.webhooks.account_devices import AccountDevices
from gateway.webhooks.notification import Notification
from geo.alerts import AlertRule
from geo.reference.in_force import HeldVersion

__all__ = ["RuleBook", "routes"]


class _Dated(NamedTuple):
    begin_ms: int
    rule: AlertRule


class RuleBook:
    """All versions of all rules. Built once, and then only asked."""

    def __init__(self, held: Iterable[HeldVersion[AlertRule]] = ()) -> None:
        self._versions = defaultdict[str, list[_Dated]](list)
        self._of_account = defaultdict[str, list[str]](list)
        for one in held:
            self._versions[one.made.id].append(_Dated(one.begin, one.made))
        for name, versions in sorted(self._versions.items()):
            versions.sort(key=lambda one: one.begin_ms)
            # the id has the account in it, so each version says the same one
            self._of_account[versions[0].rule.account].append(name)

    def __len__(self) -> int:
        return len(self._versions)

    def at(self, name: str, t_ms: int) -> AlertRule | None:
        """The version of a rule that is in force at a moment, if it is enabled."""
        versions = self._versions.get(name, [])
        at = bisect_right(versions, t_ms, key=lambda one: one.begin_ms)
        found = versions[at - 1].rule if at else None
        return found if found is not None and found.enabled else None

    def summarising(self, name: str, now_ms: int) -> AlertRule | None:
        """The version of a rule by which what it held back is summarised; None: none wants that.

        The one in force, or else the last before it that wants it, or the first one after it. What was held back was
        promised to be summarised, so neither a later version nor a clock that steps takes that back.
        """
        wanting = [one for one in self._versions.get(name, ()) if one.rule.enabled and one.rule.digest]
        before = [one.rule for one in wanting if one.begin_ms <= now_ms]
        return before[-1] if before else next((one.rule for one in wanting), None)

    def of_accounts(self, accounts: Iterable[str], t_ms: int) -> Iterator[AlertRule]:
        """The rules of some accounts that are in force at a moment, by their ids."""
        for name in sorted(name for account in accounts for name in self._of_account.get(account, ())):
            if (rule := self.at(name, t_ms)) is not None:
                yield rule


def routes(notification: Notification, rules: RuleBook, accounts: AccountDevices) -> dict[str, list[AlertRule]]:
    """The rules that a notification is for, by webhook.

    Whose the device is counts at the time of the event: who has it later does not hear of it. What was said of the same
    event before, with another time, counts as well: who heard of something must hear that it is not so. The rules are
    those in force when it was said, so that what comes again after a crash goes the same ways. The verdict of a
    withdrawn alert that does not say what was withdrawn is for every rule of the account.
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
        # rather once too often than that somebody goes by what was withdrawn
        is_about = kind is None or place is None or rule.matches(kind, place)
        if is_about and rule.hears(is_verdict=notification.is_verdict):
            found[rule.webhook].append(rule)
    return dict(found)
