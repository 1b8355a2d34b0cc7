"""The contracts as a whole: everything that was published, and of it what holds for one payer and period.

Pure. Every publication is judged once, and little is kept of each; the texts that a payer needs are read again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts.account import Account, DoubtBounds
from cloud_jobs.billing.contracts.errors import (
    AccountCycle,
    BlockedPayer,
    ChangesInsidePeriod,
    ContractFault,
    DeviceInTwoAccounts,
    MetersForgotten,
    MissingParent,
    OtherTimeZone,
    OtherZoneThanBefore,
    RefusedVersionUsed,
    SharedNumberPrefix,
    TreeTooDeep,
    UnknownPayer,
)
from cloud_jobs.billing.contracts.payer_contract import PayerContract, PayerParts
from cloud_jobs.billing.contracts.published import (
    EVER,
    MODEL_OF,
    AccountFacts,
    ContractVersion,
    ContractVersions,
    DeviceNumbers,
    TariffFacts,
    UnusableVersion,
    facts_of,
    micros,
    moment_of,
    parsed,
    usable_contract,
)
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.reference.tables import in_force
from geo.reference.in_force import RefusedVersion, Usable
from geo.reference.moments import UNKNOWN_BEGINNING

# The account tree in a period: accounts below each payer, and accounts without a payer.

MAX_LEVELS: Final = 16
"""So many levels of accounts may be below a payer."""

_Accounts = Mapping[str, ContractVersions[AccountFacts]]


class AccountTree:
    """The accounts by their ids, and of each id the accounts that ever name it as their parent, also in a publication
    that cannot be used: what that account was to become blocks the payer whose it would be."""

    def __init__(self, accounts: _Accounts) -> None:
        self._accounts = accounts
        self._children: dict[str, set[str]] = defaultdict(set)
        for name, versions in accounts.items():
            stated = [facts.parent for facts in versions.facts]
            stated += [one.body.get("parent") for one in versions.refusals]
            for parent in stated:
                if isinstance(parent, str):
                    self._children[parent].add(name)

    def payers(self, start_us: int, end_us: int) -> list[str]:
        """The accounts that pay for some of the time, sorted, also those whose publication cannot be used."""
        return sorted(
            name
            for name, versions in self._accounts.items()
            if any(one.facts.pays for one in versions.within(start_us, end_us))
            or any("payer" in one.body for one in versions.refused_within(start_us, end_us))
        )

    def above(self, names: Iterable[str]) -> list[str]:
        """The accounts that ever pay, of some accounts and of all that were ever above them; sorted."""
        seen, waiting = set[str](), [*names]
        while waiting:
            name = waiting.pop()
            if name not in seen and name in self._accounts:
                seen.add(name)
                waiting += [facts.parent for facts in self._accounts[name].facts if facts.parent]
        return sorted(name for name in seen if any(facts.pays for facts in self._accounts[name].facts))

    def below(self, payer: str, start_us: int, end_us: int, faults: list[ContractFault]) -> list[str]:
        """The payer and all accounts that lead to it within the time, sorted; what is wrong goes to `faults`."""
        found, level = {payer}, [payer]
        for depth in range(MAX_LEVELS + 1):
            following = []
            for parent in level:
                for name in sorted(self._children.get(parent, ())):
                    if self._is_child(name, parent, start_us, end_us, faults) and name not in found:
                        found.add(name)
                        following.append(name)
            if depth == MAX_LEVELS:
                faults.extend(TreeTooDeep(name, MAX_LEVELS) for name in following)
            level = following
        return sorted(found)

    def _is_child(self, name: str, parent: str, start_us: int, end_us: int, faults: list[ContractFault]) -> bool:
        """Whether an account has this parent at some moment of the time."""
        versions = self._accounts[name]
        of_parent = [one for one in versions.within(start_us, end_us) if one.facts.parent == parent]
        if not of_parent:
            faults.extend(
                RefusedVersionUsed(one.refused)
                for one in versions.refused_within(start_us, end_us)
                if one.body.get("parent") == parent
            )
            return False
        for one in of_parent:
            there = self._accounts[parent].times_within(one.begin_us, one.end_us)
            if there != ((one.begin_us, one.end_us),):
                missing = one.begin_us if not there or there[0][0] > one.begin_us else there[0][1]
                faults.append(MissingParent(name, parent, moment_of(missing)))
                break
        return True

    def changes(self, name: str, start_us: int, end_us: int) -> Iterator[ContractFault]:
        """Where an account changes who pays for it within the time."""
        versions = list(self._accounts[name].within(start_us, end_us))
        for before, after in pairwise(versions):
            if before.facts.parent != after.facts.parent:
                was, is_now = (repr(one.facts.parent) if one.facts.parent else "none" for one in (before, after))
                yield ChangesInsidePeriod(name, "parent", was, is_now, moment_of(after.begin_us))

    def way_up(self, name: str, moment_us: int) -> ContractFault | None:
        """Why an account that is there at a moment leads to no payer then; None: it pays itself, or one above it does.

        An account that is not there leads nowhere, and nothing is wrong with that.
        """
        path: dict[str, None] = {}
        version = self.version_at(name, moment_us)
        while version is not None and version.facts.parent is not None:
            path[name] = None
            above = version.facts.parent
            if above in path:
                names = list(path)
                return AccountCycle(names[names.index(above) :])
            version = self.version_at(above, moment_us)
            if version is None:
                return MissingParent(name, above, moment_of(moment_us))
            name = above
        return None

    def version_at(self, name: str, moment_us: int) -> ContractVersion[AccountFacts] | None:
        """The version of an account that is in force at a moment."""
        versions = self._accounts.get(name)
        return None if versions is None else versions.at(moment_us)

    def without_payer(self, moment_us: int) -> list[ContractFault]:
        """Why accounts lead to no payer at a moment: each cycle, and each parent that is not there, once."""
        faults = dict[tuple[str, ...], ContractFault]()
        for name in sorted(self._accounts):
            match self.way_up(name, moment_us):
                case AccountCycle() as fault:
                    faults.setdefault(tuple(sorted(fault.accounts)), fault)
                case MissingParent() as fault:
                    faults.setdefault((fault.account,), fault)
            for unusable in self._never_usable(name, moment_us):
                faults[name, str(unusable)] = unusable
        return [*faults.values()]

    def _never_usable(self, name: str, moment_us: int) -> Iterator[ContractFault]:
        """What was to be an account, and is none at all: of its devices nobody knows."""
        versions = self._accounts[name]
        if versions.at(moment_us) is None:
            for one in versions.refused_within(moment_us, moment_us + 1):
                yield RefusedVersionUsed(one.refused)


# Faults between versions: shared invoice numbers, changed time zones, missing meters. Computed once for all periods.

_Found = Iterator[tuple[str, ContractFault]]


def contradictions(of_kind: Mapping[str, Mapping[str, ContractVersions[Any]]]) -> dict[str, ContractFault]:
    """The faults of versions beside others, each by the publication of the version."""
    return {
        **dict(_shared_prefixes(of_kind["legal_entity"])),
        **dict(_other_zones(of_kind["account"])),
        **dict(_forgotten_meters(of_kind["tariff"])),
    }


def own_time_zone(versions: ContractVersions[AccountFacts]) -> str | None:
    """The time zone of an account: that of the first version that pays; None: none ever does."""
    return next((facts.pays.time_zone for facts in versions.facts if facts.pays), None)


def _shared_prefixes(sellers: Mapping[str, ContractVersions[str]]) -> _Found:
    """A number that was given is never free again: so whichever versions have the prefix, and whenever."""
    used: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, versions in sorted(sellers.items()):
        for prefix, publication in zip(versions.facts, versions.publication_ids, strict=True):
            used[prefix].append((name, publication))
    for prefix, found in used.items():
        names = list(dict.fromkeys(name for name, _ in found))
        if len(names) > 1:
            fault = SharedNumberPrefix(prefix, names)
            yield from ((publication, fault) for _, publication in found)


def _other_zones(accounts: Mapping[str, ContractVersions[AccountFacts]]) -> _Found:
    for name, versions in accounts.items():
        own = own_time_zone(versions)
        for begin, facts, publication in zip(versions.begins, versions.facts, versions.publication_ids, strict=True):
            if facts.pays and facts.pays.time_zone != own:
                assert own is not None
                yield publication, OtherZoneThanBefore(name, own, facts.pays.time_zone, moment_of(begin))


def _forgotten_meters(tariffs: Mapping[str, ContractVersions[TariffFacts]]) -> _Found:
    for name, versions in tariffs.items():
        for at, (before, after) in enumerate(pairwise(versions.facts), 1):
            forgotten = before.sold - after.sold - after.not_sold
            if forgotten:
                moment = moment_of(versions.begins[at])
                yield versions.publication_ids[at], MetersForgotten(name, sorted(forgotten), moment)


# Devices that two accounts pay for at the same time, found by sorting.

Numbers = NDArray[np.int64]


class Overlap(NamedTuple):
    """A device of two accounts from `begin_us` until `end_us` (excluded)."""

    begin_us: int
    end_us: int
    of_device: TenantDevice
    accounts: tuple[str, str]

    @property
    def fault(self) -> DeviceInTwoAccounts:
        """What is to be said of it."""
        end = None if self.end_us == EVER else moment_of(self.end_us)
        return DeviceInTwoAccounts(self.of_device, self.accounts, moment_of(self.begin_us), end)


def overlaps(
    accounts: Mapping[str, ContractVersions[AccountFacts]], names: list[tuple[str, str]]
) -> dict[str, list[Overlap]]:
    """Of each account the times in which another one has one of its devices; `names`: the device of each number.

    Of a time for which a version of an account cannot be used nobody knows its devices: it overlaps with nothing.
    """
    ids = sorted(accounts)
    rows = _assignments([accounts[one] for one in ids])
    rows = rows[:, np.lexsort((rows[3], rows[1], rows[0]))]
    found: dict[str, list[Overlap]] = defaultdict(list)
    device, begin, end, account = rows
    for first, after in _touching(device, begin, end):
        # Within one device: each assignment against the one before it that ends last. Whatever an assignment overlaps
        # with, some pair of these covers it, so each account that is in an overlap is found, for all of its time.
        longest = first
        for at in range(first + 1, after):
            if begin[at] < end[longest]:
                pair = tuple(sorted((ids[account[longest]], ids[account[at]])))
                until = int(min(end[at], end[longest]))
                one = Overlap(int(begin[at]), until, TenantDevice(*names[device[at]]), (pair[0], pair[1]))
                for owner in pair:
                    found[owner].append(one)
            if end[at] > end[longest]:
                longest = at
    return dict(found)


def _assignments(accounts: Iterable[ContractVersions[AccountFacts]]) -> Numbers:
    """Four rows: device, begin, end and the account's number, of each assignment that is in force for some time."""
    parts: list[Numbers] = [np.empty((4, 0), np.int64)]
    for number, versions in enumerate(accounts):
        for at, (since, facts) in enumerate(zip(versions.begins, versions.facts, strict=True)):
            if facts.devices:
                made = np.empty((4, len(facts.devices) // 3), np.int64)
                made[:3] = np.frombuffer(facts.devices, np.int64).reshape(-1, 3).T
                made[1] = np.maximum(made[1], since)
                made[2] = np.minimum(made[2], _until(versions, at))
                made[3] = number
                parts.append(made[:, made[1] < made[2]])
    return np.concatenate(parts, axis=1)


def _until(versions: ContractVersions[AccountFacts], at: int) -> int:
    """Until when a version says which devices an account has."""
    refused = (one.begin_us for one in versions.refusals if one.begin_us is not None)
    ends = [*versions.begins[at + 1 : at + 2], *(begin for begin in refused if begin >= versions.begins[at])]
    return min([*ends, versions.ends[at]])


def _touching(device: Numbers, begin: Numbers, end: Numbers) -> list[tuple[int, int]]:
    """From where to where the rows of each device stand that has two assignments of which one begins in the other."""
    if not len(device):
        return []
    # rows are by device and begin, so if any two of a device overlap, two neighbours do
    near = np.flatnonzero((device[1:] == device[:-1]) & (begin[1:] < end[:-1]))
    each = np.unique(device[near])
    firsts, afters = np.searchsorted(device, each), np.searchsorted(device, each, "right")
    return list(zip(firsts.tolist(), afters.tolist(), strict=True))


_PAID_WITH: Final = ("legal entity", "currency")
_NO_TARIFF: Final = TariffFacts(sold=frozenset(), not_sold=frozenset(), pools=frozenset())


class Contracts:
    """All contracts of a snapshot. `refused`: the publications that cannot be used, whoever needs them."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """From rows of the table `reference`, in any order; those of other kinds are passed over."""
        mine = [dict(row) for row in rows if row["kind"] in MODEL_OF]
        numbers = DeviceNumbers()

        def usable(kind: str, body: str) -> Usable[Any]:
            begin, made = usable_contract(kind, body)
            # of one kind all facts are of one type
            return Usable(begin, facts_of(made, numbers))

        found = in_force(mine, usable)
        self.refused = found.refused
        self._of_kind: dict[str, dict[str, ContractVersions[Any]]] = {
            kind: defaultdict(ContractVersions) for kind in MODEL_OF
        }
        for held in found.held:
            row = held.row
            versions = self._of_kind[row["kind"]][row["id"]]
            end = held.made.end_us if isinstance(held.made, AccountFacts) else EVER
            versions.add(held.begin, held.made, row["body"], row["publication_id"], end)
        bodies = {one.publication_id: "" for one in found.refused}
        bodies.update((row["publication_id"], row["body"]) for row in mine if row["publication_id"] in bodies)
        for one in found.refused:
            refusal = UnusableVersion(_beginning_us(one), one, _readable(bodies[one.publication_id]))
            self._of_kind[one.kind][one.id].refusals.append(refusal)
        self._accounts: dict[str, ContractVersions[AccountFacts]] = self._of_kind["account"]
        self._tree = AccountTree(self._accounts)
        self._names = numbers.names
        self._overlaps = overlaps(self._accounts, self._names)
        self._contradictions = contradictions(self._of_kind)

    def payers(self, start: datetime, end: datetime) -> list[str]:
        """The ids of the accounts that pay for some of a time, sorted, also of those that are blocked."""
        return self._tree.payers(micros(start), micros(end))

    def without_payer(self, moment: datetime) -> list[ContractFault]:
        """Which accounts lead to no payer at a moment, and why: nobody is billed for their devices."""
        return self._tree.without_payer(micros(moment))

    def way_up(self, account: str, moment: datetime) -> ContractFault | None:
        """Why an account that is there at a moment leads to no payer then; None: it pays, or one above it does."""
        return self._tree.way_up(account, micros(moment))

    def contradictions(self) -> list[ContractFault]:
        """What versions say against each other, whenever that is: devices in two accounts, numbers of two sellers,
        a time zone that changes, a meter that is forgotten."""
        devices = [one.fault for one in sorted({one for found in self._overlaps.values() for one in found})]
        return [*devices, *dict.fromkeys(self._contradictions.values())]

    def devices_of(self, account: str, moment: datetime) -> set[TenantDevice]:
        """The devices that an account pays for at a moment."""
        version = self._tree.version_at(account, micros(moment))
        return set() if version is None else {TenantDevice(*self._names[one]) for one in _held(version, moment)}

    def devices_paid_for(self, payer_id: str, period: BillingPeriod) -> set[TenantDevice]:
        """The devices that an account and those below it have for some of a period, whatever else is wrong."""
        start, end = micros(period.start), micros(period.end)
        found = set[int]()
        for name in self._tree.below(payer_id, start, end, faults=[]):
            for version in self._accounts[name].within(start, end):
                of = version.facts.devices
                assigned = zip(of[::3], of[1::3], of[2::3], strict=True)
                found |= {one for one, begin, until in assigned if begin < version.end_us and version.begin_us < until}
        return {TenantDevice(*self._names[one]) for one in found}

    @property
    def parents(self) -> set[str]:
        """The accounts that any of these ever names as its parent."""
        return {facts.parent for versions in self._accounts.values() for facts in versions.facts if facts.parent}

    def devices_held(self, devices: Collection[TenantDevice], moment: datetime) -> set[TenantDevice]:
        """Those of some devices that any account pays for at a moment."""
        found = set[TenantDevice]()
        for name in self._accounts if devices else ():
            found |= self.devices_of(name, moment) & {*devices}
        return found

    def account_at(self, account: str, moment: datetime) -> AccountFacts | None:
        """What is known of an account at a moment; None: it is not there."""
        version = self._tree.version_at(account, micros(moment))
        return None if version is None else version.facts

    def tariff_at(self, tariff: str, moment: datetime) -> TariffFacts:
        """The meters that a tariff has a price for at a moment, those that it says are not sold, and its pools."""
        version = self._of_kind["tariff"].get(tariff, ContractVersions[TariffFacts]()).at(micros(moment))
        return _NO_TARIFF if version is None else version.facts

    def payers_of(self, changed: Collection[tuple[str, str]]) -> list[str]:
        """The accounts that pay at some time, sorted, of those on which one of some things (kind, id) has a say."""
        rates = {name for kind, name in changed if kind == "exchange_rate"}
        needed = [
            name
            for name, versions in self._accounts.items()
            if ("account", name) in changed
            or any(
                ("tariff", facts.tariff) in changed
                or (facts.pays and ("legal_entity", facts.pays.legal_entity) in changed)
                or (facts.pays and any(rate.endswith(f"-{facts.pays.currency.lower()}") for rate in rates))
                for facts in versions.facts
            )
        ]
        return self._tree.above(needed)

    def period_of(self, payer_id: str, first_day: date, last_day: date) -> BillingPeriod:
        """Days of a payer, by the clocks of its time zone. Raises BadPeriod, UnknownPayer."""
        return BillingPeriod(self.time_zone_of(payer_id), first_day, last_day)

    def doubt_bounds(self, payer_id: str, period: BillingPeriod) -> DoubtBounds:
        """How much of a device's period may be doubtful, as was agreed with a payer at its end; else as is usual."""
        versions = self._accounts.get(payer_id, ContractVersions())
        of_period = [*versions.within(micros(period.start), micros(period.end))]
        payer = parsed(Account, of_period[-1].body).payer if of_period else None
        return DoubtBounds() if payer is None else payer.doubts

    def zone_of_account(self, account: str) -> str:
        """The time zone of an account; UTC of one that has none."""
        return own_time_zone(self._accounts.get(account, ContractVersions())) or "UTC"

    def time_zone_of(self, payer_id: str) -> str:
        """The time zone of a payer, which never changes; UTC of one of which no publication that says it can be used.

        Raises UnknownPayer.
        """
        versions = self._accounts.get(payer_id, ContractVersions())
        zone = own_time_zone(versions)
        if zone is None and not any("payer" in one.body for one in versions.refusals):
            parents = [facts.parent for facts in versions.facts if facts.parent]
            raise UnknownPayer(payer_id, f"is paid for by its parent, {parents[-1]!r}" if parents else "is no payer")
        return zone or "UTC"

    def contract_of(self, payer_id: str, period: BillingPeriod) -> PayerContract:
        """What holds for a payer and all accounts below it. Raises BlockedPayer with every reason why nothing does."""
        start, end = micros(period.start), micros(period.end)
        faults = [*self._payer_faults(payer_id, period)]
        if faults:
            raise BlockedPayer(payer_id, period, faults)
        names = self._tree.below(payer_id, start, end, faults)
        for name in names:
            faults.extend(self._tree.changes(name, start, end))
            faults.extend(RefusedVersionUsed(one.refused) for one in self._accounts[name].refused_within(start, end))
        parts = PayerParts(self._of_kind, start, end)
        made = parts.contract(payer_id, names, period)
        shared = (one for name in names for one in self._overlaps.get(name, ()))
        # of two accounts of one payer each has it
        within = dict.fromkeys(one for one in shared if one.begin_us < end and start < one.end_us)
        faults += [*parts.faults, *(one.fault for one in within)]
        faults += [self._contradictions[one] for one in parts.publications if one in self._contradictions]
        if faults or made is None:
            raise BlockedPayer(payer_id, period, list({str(fault): fault for fault in faults}.values()))
        return made

    def _payer_faults(self, payer_id: str, period: BillingPeriod) -> Iterator[ContractFault]:
        """Why an account gets no invoice of its own for a period."""
        start, end = micros(period.start), micros(period.end)
        versions = self._accounts.get(payer_id, ContractVersions())
        there = list(versions.within(start, end))
        if not there or there[-1].facts.pays is None:
            refused = [RefusedVersionUsed(one.refused) for one in versions.refused_within(start, end)]
            changes = self._tree.changes(payer_id, start, end) if there else ()
            yield from [*refused, *changes] or [self._no_payer(payer_id, there)]
            return
        own = self.time_zone_of(payer_id)
        if own != period.time_zone:
            yield OtherTimeZone(payer_id, own, period.time_zone)
        for before, after in pairwise(there):
            for what, was, is_now in zip(_PAID_WITH, before.facts.pays or (), after.facts.pays or (), strict=False):
                if was != is_now:
                    yield ChangesInsidePeriod(payer_id, what, was, is_now, moment_of(after.begin_us))

    def _no_payer(self, account: str, there: list[ContractVersion[AccountFacts]]) -> ContractFault:
        if not there:
            return UnknownPayer(account, "is not in force in the period")
        fault = self._tree.way_up(account, there[-1].end_us - 1)
        if isinstance(fault, AccountCycle) and account in fault.accounts:
            return fault
        if isinstance(fault, MissingParent) and account == fault.account:
            return fault
        return UnknownPayer(account, f"is paid for by its parent, {there[-1].facts.parent!r}")


def _held(version: ContractVersion[AccountFacts], moment: datetime) -> Iterator[int]:
    """The numbers of the devices of an account that are assigned at a moment."""
    at, devices = micros(moment), version.facts.devices
    for number, begin, end in zip(devices[::3], devices[1::3], devices[2::3], strict=True):
        if begin <= at < end:
            yield number


def _beginning_us(refused: RefusedVersion) -> int | None:
    if refused.effective_from in {"", UNKNOWN_BEGINNING}:
        return None
    return micros(datetime.fromisoformat(refused.effective_from))


def _readable(body: str) -> dict[str, Any]:
    """What can be read of a text that cannot be used."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
