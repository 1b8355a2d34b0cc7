"""All published contracts, and from them the contract of one payer for one period.

Pure. Each publication is validated once and little of it is kept; the texts that a payer needs are read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from datetime import date, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloud_jobs.billing.billing_period import BillingPeriod, Cycle, cycle_days, days_text, zone_of
from cloud_jobs.billing.contracts.account import Account, DoubtBounds
from cloud_jobs.billing.contracts.errors import (
    BlockedPayer,
    ContractFault,
    Named,
    OtherCycle,
    UnknownPayer,
    changes_in_period,
    meters_forgotten,
)
from cloud_jobs.billing.contracts.payer_contract import AccountContract, PayerContract, PayerParts, tax_faults
from cloud_jobs.billing.contracts.prices import Span
from cloud_jobs.billing.contracts.published import (
    EVER,
    MODEL_OF,
    NEW_YEAR,
    AccountFacts,
    ContractVersion,
    ContractVersions,
    TariffFacts,
    facts_of,
    micros,
    moment_of,
    parsed,
    usable_contract,
)
from cloud_jobs.billing.errors import BadPeriod
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.reference.tables import in_force
from geo.reference.in_force import RefusedVersion, Usable
from geo.reference.moments import UNKNOWN_BEGINNING, stamp

# The account tree in a period: accounts below each payer, and accounts without a payer.

_Accounts = Mapping[str, ContractVersions[AccountFacts]]
_NO_ACCOUNT: Final = ContractVersions[AccountFacts]()


class AccountTree:
    """The accounts by id, and the accounts that ever name each of them as parent."""

    def __init__(self, accounts: _Accounts) -> None:
        self._accounts = accounts
        self._children: dict[str, set[str]] = defaultdict(set)
        for name, versions in accounts.items():
            for one in versions.all:
                if one.facts.parent:
                    self._children[one.facts.parent].add(name)

    def payers(self, start_us: int, end_us: int) -> list[str]:
        """The accounts that pay for some of the time, sorted."""
        return sorted(
            name
            for name, versions in self._accounts.items()
            if any(one.facts.pays for one in versions.within(start_us, end_us))
        )

    def above(self, names: Collection[str]) -> list[str]:
        """Those of some accounts and of their parents that ever pay, sorted."""
        own = [one.facts for name in names for one in self._accounts.get(name, _NO_ACCOUNT).all]
        known = {*names, *(facts.parent for facts in own if facts.parent)}
        return sorted(
            name for name in known if any(one.facts.pays for one in self._accounts.get(name, _NO_ACCOUNT).all)
        )

    def below(self, payer: str, start_us: int, end_us: int, faults: list[ContractFault]) -> list[str]:
        """The payer and its children within the time, sorted. Appends to `faults`."""
        found = [payer]
        for name in sorted(self._children.get(payer, ())):
            if self._is_child(name, payer, start_us, end_us, faults):
                found.append(name)
                faults += [
                    _parent_is_child(grandchild, name, payer)
                    for grandchild in sorted(self._children.get(name, ()))
                    if self._is_child(grandchild, name, start_us, end_us, [])
                ]
        return sorted(found)

    def _is_child(self, name: str, parent: str, start_us: int, end_us: int, faults: list[ContractFault]) -> bool:
        """Whether an account has this parent at some moment of the time."""
        of_parent = [one for one in self._accounts[name].within(start_us, end_us) if one.facts.parent == parent]
        for one in of_parent:
            there = self._accounts[parent].times_within(one.begin_us, one.end_us)
            if there != ((one.begin_us, one.end_us),):
                missing = one.begin_us if not there or there[0][0] > one.begin_us else there[0][1]
                faults.append(_missing_parent(name, parent, missing))
                break
        return bool(of_parent)

    def changes(self, name: str, start_us: int, end_us: int) -> Iterator[ContractFault]:
        """Each change of the parent of an account within the time."""
        for before, after in pairwise(self._accounts.get(name, _NO_ACCOUNT).within(start_us, end_us)):
            if before.facts.parent != after.facts.parent:
                was, is_now = (repr(one.facts.parent) if one.facts.parent else "none" for one in (before, after))
                yield changes_in_period(name, "parent", was, is_now, moment_of(after.begin_us))

    def device_numbers(self, name: str) -> set[int]:
        """The devices that an account and those below it ever have."""
        versions = (
            one for of in (name, *self._children.get(name, ())) for one in self._accounts.get(of, _NO_ACCOUNT).all
        )
        return {number for one in versions for number in one.facts.devices[::3]}

    def way_up(self, name: str, moment_us: int) -> ContractFault | None:
        """Why an account in force leads to no payer at a moment; None: it is not in force, or a payer is found."""
        version = self.version_at(name, moment_us)
        if version is None or version.facts.parent is None:
            return None
        parent = version.facts.parent
        above = self.version_at(parent, moment_us)
        if above is None:
            return _missing_parent(name, parent, moment_us)
        return None if above.facts.parent is None else _parent_is_child(name, parent, above.facts.parent)

    def version_at(self, name: str, moment_us: int) -> ContractVersion[AccountFacts] | None:
        return self._accounts.get(name, _NO_ACCOUNT).at(moment_us)

    def without_payer(self, moment_us: int) -> list[ContractFault]:
        return [fault for name in sorted(self._accounts) if (fault := self.way_up(name, moment_us))]


def _missing_parent(account: str, parent: str, since_us: int) -> ContractFault:
    text = f"account {account!r} has the parent {parent!r}, which is not in force at {stamp(moment_of(since_us))}"
    return ContractFault(text, ("account", account), missing=("account", parent))


def _parent_is_child(account: str, parent: str, above: str) -> ContractFault:
    text = f"account {account!r} has the parent {parent!r}, which has the parent {above!r}; a parent must pay itself"
    return ContractFault(text, ("account", account))


# Faults between versions: shared invoice numbers, changed time zones, missing meters. Computed once for all periods.

_Found = Iterator[tuple[str, ContractFault]]


def contradictions(of_kind: Mapping[str, Mapping[str, ContractVersions[Any]]]) -> dict[str, ContractFault]:
    """Versions that contradict others, by the publication of the version."""
    return {
        **dict(_shared_prefixes(of_kind["legal_entity"])),
        **dict(_other_zones(of_kind["account"])),
        **dict(_forgotten_meters(of_kind["tariff"])),
    }


def own_time_zone(versions: ContractVersions[AccountFacts]) -> str | None:
    """The time zone of an account: that of the first version that pays; None: none ever does."""
    return next((one.facts.pays.time_zone for one in versions.all if one.facts.pays), None)


def _shared_prefixes(sellers: Mapping[str, ContractVersions[str]]) -> _Found:
    """Two sellers with one prefix, in whichever versions: a number that was given is never free again."""
    used: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, versions in sorted(sellers.items()):
        for one in versions.all:
            used[one.facts].append((name, one.publication_id))
    for prefix, found in used.items():
        names = list(dict.fromkeys(name for name, _ in found))
        if len(names) > 1:
            text = (
                f"the legal entities {' and '.join(map(repr, names))} have one number_prefix, {prefix!r}: two "
                "documents would have one number; give each a prefix that no other seller ever had"
            )
            fault = ContractFault(text, *(("legal_entity", name) for name in names))
            yield from ((publication, fault) for _, publication in found)


def _other_zones(accounts: _Accounts) -> _Found:
    for name, versions in accounts.items():
        own = own_time_zone(versions)
        for one in versions.all:
            if one.facts.pays and one.facts.pays.time_zone != own:
                since = stamp(moment_of(one.begin_us))
                text = (
                    f"account {name!r} is of {own}, and from {since} on it would be of {one.facts.pays.time_zone}: its "
                    "days would overlap or leave hours out; end its devices then, and begin a new account that has "
                    "them from there on"
                )
                yield one.publication_id, ContractFault(text, ("account", name))


def _forgotten_meters(tariffs: Mapping[str, ContractVersions[TariffFacts]]) -> _Found:
    for name, versions in tariffs.items():
        for before, after in pairwise(versions.all):
            forgotten = before.facts.sold - after.facts.sold - after.facts.not_sold
            if forgotten:
                fault = meters_forgotten(name, sorted(forgotten), moment_of(after.begin_us))
                yield after.publication_id, fault


# Devices that two accounts pay for at the same time, found by sorting.

Numbers = NDArray[np.int64]


class Overlap(NamedTuple):
    """A device of two accounts from `begin_us` until `end_us` (excluded)."""

    begin_us: int
    end_us: int
    of_device: TenantDevice
    accounts: tuple[str, str]

    @property
    def fault(self) -> ContractFault:
        one, other = self.accounts
        until = " on" if self.end_us == EVER else f" until {stamp(moment_of(self.end_us))}"
        text = (
            f"device {self.of_device.device!r} of tenant {self.of_device.tenant!r} is in account {one!r} and in "
            f"account {other!r} from {stamp(moment_of(self.begin_us))}{until}; end one of the two assignments"
        )
        return ContractFault(text, ("account", one), ("account", other))


def overlaps(accounts: _Accounts, names: list[tuple[str, str]]) -> dict[str, list[Overlap]]:
    """For each account the times in which another account has one of its devices.

    `names`: tenant and device of each device number.
    """
    ids = sorted(accounts)
    rows = _assignments([accounts[one] for one in ids])
    rows = rows[:, np.lexsort((rows[3], rows[1], rows[0]))]
    found: dict[str, list[Overlap]] = defaultdict(list)
    device, begin, end, account = rows
    for first, after in _touching(device, begin, end):
        # Each assignment of a device is compared with the earlier one that ends last. Any overlap is covered by such a
        # pair, so every account with an overlap is found for all of its time.
        longest = first
        for at in range(first + 1, after):
            if begin[at] < end[longest]:
                one, other = sorted((ids[account[longest]], ids[account[at]]))
                until = int(min(end[at], end[longest]))
                overlap = Overlap(int(begin[at]), until, TenantDevice(*names[device[at]]), (one, other))
                found[one].append(overlap)
                found[other].append(overlap)
            if end[at] > end[longest]:
                longest = at
    return dict(found)


def _assignments(accounts: Iterable[ContractVersions[AccountFacts]]) -> Numbers:
    """Four rows: device, begin, end and the account's number, of each assignment that is in force for some time."""
    parts: list[Numbers] = [np.empty((4, 0), np.int64)]
    for number, versions in enumerate(accounts):
        for one in versions.all:
            if one.facts.devices:
                made = np.empty((4, len(one.facts.devices) // 3), np.int64)
                made[:3] = np.frombuffer(one.facts.devices, np.int64).reshape(-1, 3).T
                made[1] = np.maximum(made[1], one.begin_us)
                made[2] = np.minimum(made[2], one.end_us)
                made[3] = number
                parts.append(made[:, made[1] < made[2]])
    return np.concatenate(parts, axis=1)


def _touching(device: Numbers, begin: Numbers, end: Numbers) -> list[tuple[int, int]]:
    """First and last (excluded) row of each device that has two overlapping assignments."""
    if not len(device):
        return []
    # rows are sorted by device and begin, so if any two rows of a device overlap, two neighbours do
    near = np.flatnonzero((device[1:] == device[:-1]) & (begin[1:] < end[:-1]))
    each = np.unique(device[near])
    firsts, afters = np.searchsorted(device, each), np.searchsorted(device, each, "right")
    return list(zip(firsts.tolist(), afters.tolist(), strict=True))


Days = tuple[date, date]
_DAY: Final = timedelta(days=1)
_YEAR_US: Final = timedelta(days=366) // timedelta(microseconds=1)


class PayerCycle(NamedTuple):
    """`cycle`: None is stated; it is the month where something depends on it. `days`: first and last day of a period.
    `cut_days`: the days of the cycle that are not in it, because another cycle or a contract year begins.
    """

    cycle: Cycle | None
    days: Days
    cut_days: int


_PAID_WITH: Final = ("legal entity", "currency")
_NO_TARIFF: Final = TariffFacts(sold=frozenset(), not_sold=frozenset())


class Contracts:
    """All contracts of a snapshot. `refused`: the publications that cannot be used."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """From rows of the table `reference` in any order; rows of other kinds are ignored."""
        mine = [dict(row) for row in rows if row["kind"] in MODEL_OF]
        numbers: dict[tuple[str, str], int] = {}

        def usable(kind: str, body: str) -> Usable[Any]:
            begin, made = usable_contract(kind, body)
            # all facts of one kind have one type
            return Usable(begin, facts_of(made, numbers))

        found = in_force(mine, usable)
        self.refused = found.refused
        self._of_kind: dict[str, dict[str, ContractVersions[Any]]] = {
            kind: defaultdict(ContractVersions) for kind in MODEL_OF
        }
        for held in found.held:
            row = held.row
            end = held.made.end_us if isinstance(held.made, AccountFacts) else EVER
            version = ContractVersion(held.begin, end, held.made, row["body"], row["publication_id"])
            self._of_kind[row["kind"]][row["id"]].add(version)
        self._accounts: dict[str, ContractVersions[AccountFacts]] = self._of_kind["account"]
        self._tree = AccountTree(self._accounts)
        self._names = [*numbers]
        self._overlaps = overlaps(self._accounts, self._names)
        self._contradictions = contradictions(self._of_kind)
        tariffs = self._of_kind["tariff"].items()
        self._of_year = {name for name, of in tariffs if any(one.facts.has_year for one in of.all)}

    def payers(self, start: datetime, end: datetime) -> list[str]:
        """The ids of the accounts that pay for some of a time, sorted, including blocked ones."""
        return self._tree.payers(micros(start), micros(end))

    def by_first_device(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """Accounts in the order of the first device that they or those below them ever have, with the number of
        devices.
        """
        numbers = {name: self._tree.device_numbers(name) for name in names}
        first = {name: min((self._names[one] for one in of), default=()) for name, of in numbers.items()}
        return [(name, len(numbers[name])) for name in sorted(numbers, key=lambda one: (first[one], one))]

    def without_payer(self, moment: datetime) -> list[ContractFault]:
        """The accounts that lead to no payer at a moment, and why: nobody is billed for their devices."""
        return self._tree.without_payer(micros(moment))

    def way_up(self, account: str, moment: datetime) -> ContractFault | None:
        """Why an account in force leads to no payer at a moment; None: it pays, or one above it does."""
        return self._tree.way_up(account, micros(moment))

    def contradictions(self) -> list[ContractFault]:
        """Versions that contradict each other at any time: devices in two accounts, numbers of two sellers, a changed
        time zone, a meter that a version does not mention."""
        devices = [one.fault for one in sorted({one for found in self._overlaps.values() for one in found})]
        return [*devices, *dict.fromkeys(self._contradictions.values())]

    def devices_of(self, account: str, moment: datetime) -> set[TenantDevice]:
        version = self._tree.version_at(account, micros(moment))
        return set() if version is None else self._devices(version, micros(moment), micros(moment) + 1)

    def devices_paid_for(self, payer_id: str, period: BillingPeriod) -> set[TenantDevice]:
        """The devices that an account and those below it have for some of a period, whatever else is wrong."""
        start, end = micros(period.start), micros(period.end)
        found = set[TenantDevice]()
        for name in self._tree.below(payer_id, start, end, faults=[]):
            for version in self._accounts.get(name, _NO_ACCOUNT).within(start, end):
                found |= self._devices(version, version.begin_us, version.end_us)
        return found

    def _devices(self, version: ContractVersion[AccountFacts], start_us: int, end_us: int) -> set[TenantDevice]:
        """The devices that a version assigns for some of a time."""
        of = version.facts.devices
        assigned = zip(of[::3], of[1::3], of[2::3], strict=True)
        return {TenantDevice(*self._names[one]) for one, begin, end in assigned if begin < end_us and start_us < end}

    @property
    def parents(self) -> set[str]:
        """The accounts that any account ever names as its parent."""
        return {one.facts.parent for versions in self._accounts.values() for one in versions.all if one.facts.parent}

    def assignments(self) -> Iterator[tuple[str, TenantDevice, int, int]]:
        """Account, device, begin and end (µs) of what each version of an account assigns while it is in force."""
        for account, versions in self._accounts.items():
            for version in versions.all:
                of = version.facts.devices
                for one, begin, end in zip(of[::3], of[1::3], of[2::3], strict=True):
                    yield (
                        account,
                        TenantDevice(*self._names[one]),
                        max(begin, version.begin_us),
                        min(end, version.end_us),
                    )

    def account_at(self, account: str, moment: datetime) -> AccountFacts | None:
        version = self._tree.version_at(account, micros(moment))
        return None if version is None else version.facts

    def tariff_at(self, tariff: str, moment: datetime) -> TariffFacts:
        """The meters that a tariff sells at a moment, and those that it states are not sold."""
        version = self._of_kind["tariff"].get(tariff, ContractVersions[TariffFacts]()).at(micros(moment))
        return _NO_TARIFF if version is None else version.facts

    def has_default_year(self, account: str, begin: datetime) -> bool:
        """Whether something is of a year from the first version of an account on, and no version states a year."""
        first, *_ = self._accounts[account].all
        names = (account, first.facts.parent or account)
        states = any(one.facts.year_begins for name in names for one in self._accounts.get(name, _NO_ACCOUNT).all)
        return first.begin_us == micros(begin) and not states and self._is_of_year(account, first.begin_us, EVER)

    def zone_of_payer(self, account: str, facts: AccountFacts) -> str | None:
        """The time zone of the payer of an account's version; None if it is not known."""
        return own_time_zone(self._accounts.get(facts.parent or account, _NO_ACCOUNT))

    def zones_by_tariff(self) -> Mapping[str, set[str]]:
        """The time zones of the payers of each tariff."""
        zones = defaultdict[str, set[str]](set)
        for name, versions in self._accounts.items():
            for one in versions.all:
                if zone := self.zone_of_payer(name, one.facts):
                    zones[one.facts.tariff].add(zone)
        return zones

    def payers_of(self, changed: Collection[tuple[str, str]]) -> list[str]:
        """The accounts that ever pay and depend on one of some contracts (kind, id), sorted."""
        rates = {name for kind, name in changed if kind == "exchange_rate"}
        tariffs = {
            name
            for name, versions in self._of_kind["tariff"].items()
            if ("tariff", name) in changed or any(("calendar", one.facts.calendar) in changed for one in versions.all)
        }
        needed = [
            name
            for name, versions in self._accounts.items()
            if ("account", name) in changed
            or any(
                facts.tariff in tariffs
                or (facts.pays and ("legal_entity", facts.pays.legal_entity) in changed)
                or (facts.pays and any(rate.endswith(f"-{facts.pays.currency.lower()}") for rate in rates))
                for facts in (one.facts for one in versions.all)
            )
        ]
        return self._tree.above(needed)

    def period_of(self, payer_id: str, first_day: date, last_day: date) -> BillingPeriod:
        """Days of a payer, in its time zone. Raises BadPeriod, UnknownPayer."""
        return BillingPeriod(self.time_zone_of(payer_id), first_day, last_day)

    def doubt_bounds(self, payer_id: str, period: BillingPeriod) -> DoubtBounds:
        """The doubts that a payer accepts at the period's end; the defaults if it is no payer."""
        versions = self._accounts.get(payer_id, _NO_ACCOUNT)
        of_period = [*versions.within(micros(period.start), micros(period.end))]
        payer = parsed(Account, of_period[-1].body).payer if of_period else None
        return DoubtBounds() if payer is None else payer.doubts

    def zone_of_account(self, account: str) -> str:
        """The time zone of an account; UTC for one that never pays."""
        return own_time_zone(self._accounts.get(account, _NO_ACCOUNT)) or "UTC"

    def time_zone_of(self, payer_id: str) -> str:
        """The time zone of a payer, which never changes. Raises UnknownPayer."""
        versions = self._accounts.get(payer_id, _NO_ACCOUNT)
        zone = own_time_zone(versions)
        if zone is None:
            parents = [one.facts.parent for one in versions.all if one.facts.parent]
            raise UnknownPayer(payer_id, f"is paid for by its parent, {parents[-1]!r}" if parents else "is not a payer")
        return zone

    def contract_of(self, payer_id: str, period: BillingPeriod) -> PayerContract:
        """The contract of a payer and all accounts below it. Raises BlockedPayer with every reason why there is none.

        A publication that cannot be used blocks those who use its id, for every period that ends after its start.
        """
        cycle, fault = self._other_cycle(payer_id, period)
        if cycle and fault:
            raise BlockedPayer(payer_id, period, [fault])
        made = self._of_period(payer_id, period)
        if fault and any(terms.is_by_cycle for terms in made.accounts):
            raise BlockedPayer(payer_id, period, [fault])
        if any(Span.WEEK in terms.depends_on or self._had_year(terms.id, period) for terms in made.accounts):
            return self._with_earlier(made)
        return made

    def _of_period(self, payer_id: str, period: BillingPeriod) -> PayerContract:
        """The contract, whatever the payer's cycle is, without earlier periods."""
        start, end = micros(period.start), micros(period.end)
        faults = [*self._payer_faults(payer_id, period)]
        if faults:
            faults += self._refused_faults({("account", payer_id)}, period)
            raise BlockedPayer(payer_id, period, faults)
        names = self._tree.below(payer_id, start, end, faults)
        for name in names:
            faults.extend(self._tree.changes(name, start, end))
        parts = PayerParts(self._of_kind, start, end, period.time_zone)
        made = parts.contract(payer_id, names, period)
        # both accounts may be of this payer
        shared = dict.fromkeys(one for name in names for one in self._overlaps.get(name, ()))
        faults += tax_faults(made) if made else ()
        faults += [*parts.faults, *(one.fault for one in shared if one.begin_us < end and start < one.end_us)]
        faults += [self._contradictions[one] for one in parts.publications if one in self._contradictions]
        faults += self._refused_faults({*parts.used, *(("account", name) for name in names)}, period)
        if faults or made is None:
            raise BlockedPayer(payer_id, period, list({str(fault): fault for fault in faults}.values()))
        cycle = self.cycle_at(payer_id, period.first_day)
        # a longer period has no cycle
        return replace(made, cut_days=cycle.cut_days if cycle.days[1] == period.last_day else 0)

    def _had_year(self, name: str, period: BillingPeriod) -> bool:
        """Whether the tariff of an account has something of a contract year, or had it in the year before."""
        return self._is_of_year(name, micros(period.start) - _YEAR_US, micros(period.end))

    def _is_of_year(self, name: str, start_us: int, end_us: int) -> bool:
        return bool(self._of_year) and any(
            one.facts.has_year
            for of in self._accounts[name].within(start_us, end_us)
            if of.facts.tariff in self._of_year
            for one in self._of_kind["tariff"][of.facts.tariff].within(of.begin_us, of.end_us)
        )

    def cycle_at(self, payer_id: str, day: date) -> PayerCycle:
        """The cycle of a payer, and the period that has a day. Raises UnknownPayer."""
        zone, runs = zone_of(self.time_zone_of(payer_id)), list[tuple[date, Cycle | None, date | None]]()
        for one in self._accounts[payer_id].all:
            agreed = one.facts.pays and (one.facts.pays.cycle, one.facts.year_begins)
            if agreed and (not runs or runs[-1][1:] != agreed):
                begin = moment_of(one.begin_us).astimezone(zone).date() if runs else date.min
                runs.append((begin, *agreed))
        number = bisect_right([begin for begin, *_ in runs], day) - 1
        begin, cycle, year_begins = runs[number]
        first, last = cycle_days(cycle or Cycle.MONTH, year_begins or NEW_YEAR, day)
        # another cycle ends this one, and so does a contract year
        cuts = [(begin, runs[number + 1][0] - _DAY if runs[number + 1 :] else date.max)]
        cuts += [cycle_days(Cycle.YEAR, year_begins, day)] if year_begins else []
        days = max(first, *(one for one, _ in cuts)), min(last, *(one for _, one in cuts))
        return PayerCycle(cycle, days, (last - first).days - (days[1] - days[0]).days)

    def _other_cycle(self, payer_id: str, period: BillingPeriod) -> tuple[Cycle | None, OtherCycle | None]:
        """The stated cycle of a payer, and the fault of a period that is none of its cycle, or of the months."""
        try:
            found = [self.cycle_at(payer_id, period.first_day)]
        except UnknownPayer:
            return None, None
        while found[-1].days[1] < period.last_day:
            found.append(self.cycle_at(payer_id, found[-1].days[1] + _DAY))
        periods, cycle = [one.days for one in found], found[0].cycle
        if periods == [(period.first_day, period.last_day)]:
            return cycle, None
        named = [days_text(*one) for one in periods]
        return cycle, OtherCycle(payer_id, cycle or Cycle.MONTH, period, named, is_part=len(periods) == 1)

    def _with_earlier(self, made: PayerContract) -> PayerContract:
        """The contract with its contract years, and with the earlier periods of the year or week. Raises
        BlockedPayer.
        """
        period, made = made.period, self._with_years(made)
        of_year = [terms for terms in made.accounts if self._had_year(terms.id, period)]
        faults = [fault for terms in of_year for fault in self._year_faults(made, terms)]
        begin, days = min((terms.year[0] for terms in of_year if terms.year), default=period.first_day), list[Days]()
        while not faults and begin < period.first_day:
            last = min(self.cycle_at(made.id, begin).days[1], period.first_day - _DAY)
            days.append((begin, last))
            begin = last + _DAY
        first = days[0][0] if days else period.first_day
        monday = period.first_day - _DAY * period.first_day.weekday()
        if monday < first and any(Span.WEEK in terms.depends_on for terms in made.accounts):
            days.insert(0, (monday, first - _DAY))
        earlier = list[PayerContract]()
        for one in days:
            try:
                earlier.append(self._with_years(self._of_period(made.id, BillingPeriod(period.time_zone, *one))))
            except BadPeriod:
                # the time zone skipped the day
                continue
            except BlockedPayer as blocked:
                # it began later
                faults += [fault for fault in blocked.faults if not isinstance(fault, UnknownPayer)]
        if faults:
            raise BlockedPayer(made.id, period, faults)
        digest = sha256("".join([made.digest, *(one.digest for one in earlier)]).encode()).hexdigest()
        return replace(made, earlier=tuple(earlier), digest=digest)

    def _with_years(self, made: PayerContract) -> PayerContract:
        """The contract with the contract year of each account: its own, or the payer's."""
        own = {terms.id: [*self._accounts[terms.id].within(*terms.times[-1])][-1].facts for terms in made.accounts}
        anchors = {name: facts.year_begins or own[made.id].anchor for name, facts in own.items()}
        years = {name: cycle_days(Cycle.YEAR, anchor, made.period.first_day) for name, anchor in anchors.items()}
        return replace(made, accounts=tuple(replace(terms, year=years[terms.id]) for terms in made.accounts))

    def _year_faults(self, made: PayerContract, terms: AccountContract) -> Iterator[ContractFault]:
        """Why an account cannot have pools, caps or a minimum of a contract year."""
        assert terms.year is not None
        first, last = terms.year
        if last < made.period.last_day or self.cycle_at(made.id, first).days[0] != first:
            yield ContractFault(
                f"the contract year of account {terms.id!r} begins on {first}, within a period of account {made.id!r}, "
                "which pays; write year_begins, and let it be the first day of a period",
                ("account", terms.id),
            )
        for tariff in {span.tariff.id: span.tariff for span in terms.spans}.values():
            if Span.YEAR in tariff.spans and tariff.currency != made.payer.currency:
                yield ContractFault(
                    f"tariff {tariff.id!r} has a pool, cap or minimum of a contract year in {tariff.currency}, and "
                    f"account {made.id!r} pays in {made.payer.currency}: a year has many exchange rates; price it in "
                    "the payer's currency",
                    ("tariff", tariff.id),
                )

    def _refused_faults(self, used: Set[Named], period: BillingPeriod) -> list[ContractFault]:
        return [
            ContractFault(f"{one}; publish it again, corrected", (one.kind, one.id))
            for one in self.refused
            if (one.kind, one.id) in used and _may_begin_before(one, period.end)
        ]

    def _payer_faults(self, payer_id: str, period: BillingPeriod) -> Iterator[ContractFault]:
        """Why an account gets no invoice of its own for a period."""
        start, end = micros(period.start), micros(period.end)
        there = list(self._accounts.get(payer_id, _NO_ACCOUNT).within(start, end))
        if not there or there[-1].facts.pays is None:
            yield from [*self._tree.changes(payer_id, start, end)] or [self._no_payer(payer_id, there)]
            return
        own = self.time_zone_of(payer_id)
        if own != period.time_zone:
            text = f"account {payer_id!r} is billed in time zone {own}, but the period is in {period.time_zone}"
            yield ContractFault(text, ("account", payer_id))
        for before, after in pairwise(there):
            both = ((one.facts.pays or ())[: len(_PAID_WITH)] for one in (before, after))
            for what, was, is_now in zip(_PAID_WITH, *both, strict=False):
                if was != is_now:
                    yield changes_in_period(payer_id, what, was, is_now, moment_of(after.begin_us))

    def _no_payer(self, account: str, there: list[ContractVersion[AccountFacts]]) -> ContractFault:
        if not there:
            return UnknownPayer(account, "is not in force in the period")
        fault = self._tree.way_up(account, there[-1].end_us - 1)
        return fault or UnknownPayer(account, f"is paid for by its parent, {there[-1].facts.parent!r}")


def _may_begin_before(refused: RefusedVersion, moment: datetime) -> bool:
    since = refused.effective_from
    return since in {"", UNKNOWN_BEGINNING} or datetime.fromisoformat(since) < moment
