"""The contracts as a whole: everything that was published, and of it what holds for one payer and period.

Pure. Every publication is judged once, and little is kept of each; the texts that a payer needs are read again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, datetime
from itertools import pairwise
from typing import Any, Final

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts.account import Account, DoubtBounds
from cloud_jobs.billing.contracts.account_tree import AccountTree
from cloud_jobs.billing.contracts.contradictions import contradictions, own_time_zone
from cloud_jobs.billing.contracts.device_overlaps import overlaps
from cloud_jobs.billing.contracts.errors import (
    AccountCycle,
    BlockedPayer,
    ChangesInsidePeriod,
    ContractFault,
    MissingParent,
    OtherTimeZone,
    RefusedVersionUsed,
    UnknownPayer,
)
from cloud_jobs.billing.contracts.payer_contract import PayerContract
from cloud_jobs.billing.contracts.payer_parts import PayerParts
from cloud_jobs.billing.contracts.price import PoolKey
from cloud_jobs.billing.contracts.published import (
    MODEL_OF,
    AccountFacts,
    DeviceNumbers,
    TariffFacts,
    facts_of,
    parsed,
    usable_contract,
)
from cloud_jobs.billing.contracts.versions import (
    EVER,
    ContractVersion,
    ContractVersions,
    UnusableVersion,
    micros,
    moment_of,
)
from cloud_jobs.in_force import in_force
from cloud_jobs.lake.coverage import TenantDevice
from geo.reference.beginning import UNKNOWN_BEGINNING
from geo.reference.in_force import RefusedVersion, Usable

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
        version = self._accounts.get(account, ContractVersions[AccountFacts]()).at(micros(moment))
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

    def pays(self, account: str, moment: datetime) -> bool:
        """Whether an account pays itself at a moment."""
        version = self._accounts.get(account, ContractVersions[AccountFacts]()).at(micros(moment))
        return version is not None and version.facts.pays is not None

    def tariff_of(self, account: str, moment: datetime) -> str:
        """The tariff of an account at a moment; "": it is not there."""
        version = self._accounts.get(account, ContractVersions[AccountFacts]()).at(micros(moment))
        return "" if version is None else version.facts.tariff

    def sold(self, tariff: str, moment: datetime) -> frozenset[str]:
        """The meters that a tariff has a price for at a moment."""
        return self._tariff_facts(tariff, moment).sold

    def not_sold(self, tariff: str, moment: datetime) -> frozenset[str]:
        """The meters of which a tariff says at a moment that they are not sold."""
        return self._tariff_facts(tariff, moment).not_sold

    def pools(self, tariff: str, moment: datetime) -> frozenset[PoolKey]:
        """The pools of a tariff at a moment that have an allowance or tiers."""
        return self._tariff_facts(tariff, moment).pools

    def _tariff_facts(self, tariff: str, moment: datetime) -> TariffFacts:
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
        last = there[-1].end_us - 1
        for fault in self._tree.without_payer(last):
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
