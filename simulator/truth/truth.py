"""The truth of one run, computed from its scenario and its journal alone."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from simulator.truth.charging import TrueKey
from simulator.truth.contracts import QUARTER, TrueContracts, TrueDays, TrueQuarter, month_of
from simulator.truth.journal import Entry, Made, TruePosition, read_journal
from simulator.truth.metering import (
    TrueUnknown,
    TrueUsage,
    gate_usage_of,
    inferred_in,
    unknown_of,
    usage_of,
    whole_usage_of,
)
from simulator.truth.owed import TrueOwed, TrueTax, owed_by
from simulator.truth.shapes import TrueGate, TruthError, Zones, read_gates, read_zones
from simulator.truth.track import TrueRule

# Documents by state of knowledge: an invoice first, then differences.


class PostedCharge(NamedTuple):
    """A line of a document: what it is for, and the difference."""

    about: TrueKey
    quantity: int
    free: int
    amount_minor: int


class TrueDocument(NamedTuple):
    """The content of an invoice or note; `number` counts the documents of its seller from 1.

    `kind`: invoice, debit note or credit note; a credit note has negative amounts. `of`: the number of the invoice that
    a note refers to.
    """

    kind: str
    number: int
    of: int | None
    legal_entity: str
    payer: str
    days: TrueDays
    currency: str
    charges: tuple[PostedCharge, ...]
    taxes: tuple[TrueTax, ...]

    @property
    def net_minor(self) -> int:
        return sum(charge.amount_minor for charge in self.charges)

    @property
    def tax_minor(self) -> int:
        return sum(tax.tax_minor for tax in self.taxes)

    @property
    def gross_minor(self) -> int:
        return self.net_minor + self.tax_minor


Said = tuple[tuple[PostedCharge, ...], tuple[TrueTax, ...]]


class TrueLedger:
    """All documents of all sellers, in the order of issue."""

    def __init__(self) -> None:
        self.documents: list[TrueDocument] = []

    def issue(self, owed: TrueOwed, days: TrueDays) -> TrueDocument | None:
        """The invoice of a payer and period; None if it would have no line (EN 16931 BR-16). Raises TruthError if
        there is one.
        """
        if any(document.of is None for document in self._about(owed.payer, days)):
            raise TruthError(f"{owed.payer} has an invoice for {days.first_day} to {days.last_day}")
        charges = tuple(PostedCharge(*one) for one in owed.charges)
        if not charges:
            return None
        return self._post(owed, days, None, (charges, owed.taxes))

    def adjust(self, owed: TrueOwed, days: TrueDays) -> TrueDocument | None:
        """The note with the difference between what is owed now and what was posted. Raises TruthError.

        None if no amount changes; free usage alone makes no note, and is on the next one.
        """
        posted = self._about(owed.payer, days)
        if not posted:
            raise TruthError(f"{owed.payer} has no invoice for {days.first_day} to {days.last_day}")
        if {owed.currency, *(document.currency for document in posted)} != {owed.currency}:
            raise TruthError(f"{owed.payer} was billed in another currency than {owed.currency}")
        charges, taxes = _charges_missing(owed, posted), _taxes_missing(owed, posted)
        if not taxes and not any(charge.amount_minor for charge in charges):
            return None
        return self._post(owed, days, posted[0].number, (charges, taxes))

    def _about(self, payer: str, days: TrueDays) -> list[TrueDocument]:
        return [document for document in self.documents if (document.payer, document.days) == (payer, days)]

    def _post(self, owed: TrueOwed, days: TrueDays, of: int | None, said: Said) -> TrueDocument:
        net = sum(charge.amount_minor for charge in said[0])
        gross = net + sum(tax.tax_minor for tax in said[1])
        # A note that asks for nothing more is a credit note, also if it moves amounts between charges.
        asks = gross > 0 or (gross == 0 and net > 0)
        kind = "invoice" if of is None else "debit note" if asks else "credit note"
        number = 1 + sum(document.legal_entity == owed.legal_entity for document in self.documents)
        document = TrueDocument(kind, number, of, owed.legal_entity, owed.payer, days, owed.currency, *said)
        self.documents.append(document)
        return document


def _charges_missing(owed: TrueOwed, posted: list[TrueDocument]) -> tuple[PostedCharge, ...]:
    """What is owed minus what was posted, for each key."""
    sums: dict[TrueKey, list[int]] = {}
    for sign, charges in [(1, owed.charges), *((-1, document.charges) for document in posted)]:
        for about, *amounts in charges:
            before = sums.get(about, [0, 0, 0])
            sums[about] = [sum_ + sign * amount for sum_, amount in zip(before, amounts, strict=True)]
    return tuple(PostedCharge(about, *amounts) for about, amounts in sorted(sums.items()) if any(amounts))


def _taxes_missing(owed: TrueOwed, posted: list[TrueDocument]) -> tuple[TrueTax, ...]:
    """The same for taxes. Their sum is the tax on everything, not a sum of rounded taxes."""
    groups = [*owed.taxes, *(tax for document in posted for tax in document.taxes)]
    missing = []
    for category, rate, reason in sorted({tax[:3] for tax in groups}):
        taxable = tax_minor = 0
        for sign, taxes in [(1, owed.taxes), *((-1, document.taxes) for document in posted)]:
            for tax in taxes:
                if tax[:3] == (category, rate, reason):
                    taxable += sign * tax.taxable_minor
                    tax_minor += sign * tax.tax_minor
        if taxable or tax_minor:
            missing.append(TrueTax(category, rate, reason, taxable, tax_minor))
    return tuple(missing)


class TruthPeriod(NamedTuple):
    """A service period; `end` is exclusive."""

    start: datetime
    end: datetime


class Truth:
    """Existing records, their usage and what is owed. Slow, plain, and without code of what it judges."""

    def __init__(
        self,
        *,
        entries: Mapping[str, list[Entry]],
        zones: Zones,
        gates: tuple[TrueGate, ...] = (),
        period: TruthPeriod,
        senders: dict[str, tuple[str, str]] | None = None,
        contracts: TrueContracts | None = None,
        rule: TrueRule = "standstill",
    ) -> None:
        """`entries`: the records of each device, in the order in which they were made. `rule`: that of tracks."""
        self._entries = dict(entries)
        self._zones = zones
        self._gates = gates
        self.period = period
        self._senders = senders or {}
        self._contracts = contracts
        self._rule: TrueRule = rule
        self._metered: dict[str, list[TrueUsage]] = {}

    @classmethod
    def from_folder(cls, folder: Path | str, journal: Path | str = "made.jsonl", rule: TrueRule = "standstill") -> Self:
        """Read a scenario's folder and the journal (a name in it, or a path). Raises TruthError."""
        folder = Path(folder)
        entries: dict[str, list[Entry]] = {}
        for entry in read_journal(folder / journal):
            entries.setdefault(entry.device, []).append(entry)
        return cls(
            entries=entries,
            zones=read_zones(folder / "fences.geojson"),
            gates=read_gates(folder / "fences.geojson"),
            period=_period(folder),
            senders={name: sender for sender, name in _names(folder).items()},
            contracts=TrueContracts.of_file(path) if (path := folder / "contracts.toml").exists() else None,
            rule=rule,
        )

    def knowing(self, known: Mapping[str, Counter[Made]]) -> "Truth":
        """The truth if only these records of the devices in `known` are known, and all of the others."""
        entries = dict(self._entries)
        for device, of_device in known.items():
            left = Counter(of_device)
            entries[device] = []
            for entry in self._entries.get(device, []):
                if left[entry.made]:
                    left[entry.made] -= 1
                    entries[device].append(entry)
        partly = Truth(
            entries=entries,
            zones=self._zones,
            gates=self._gates,
            period=self.period,
            senders=self._senders,
            contracts=self._contracts,
            rule=self._rule,
        )
        # Slow to compute, and unchanged for devices of which everything is known.
        self.usage()
        partly._metered = {device: rows for device, rows in self._metered.items() if device not in known}
        return partly

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(sorted(self._entries))

    def records(self, device: str) -> Counter[Made]:
        return Counter(entry.made for entry in self._entries.get(device, []))

    def positions(self, device: str) -> list[TruePosition]:
        """The fixes of a device, in the order in which they were made."""
        return [entry.position for entry in self._entries.get(device, []) if entry.position is not None]

    def usage(self) -> tuple[TrueUsage, ...]:
        """The usage of all devices, sorted by device, quarter and zone."""
        return self._usage

    def unknown(self) -> tuple[TrueUnknown, ...]:
        """The unknown and known driving of all devices, sorted by device and quarter."""
        found = (unknown_of(one, self.positions(one), self._zones, self._rule) for one in self.devices)
        return tuple(row for rows in found for row in rows)

    @property
    def payers(self) -> dict[str, TrueDays]:
        """The payers, each with the days of the period's month in its own time zone."""
        found = {}
        for name in self.contracts.payers(self.period.end):
            account = self.contracts.account(name, self.period.end)
            assert account is not None
            assert account.payer is not None
            found[name] = month_of(account.payer.time_zone, self.period.start.year, self.period.start.month)
        return found

    def quarters(self) -> tuple[TrueQuarter, ...]:
        """The usage of all devices, by tenant and device as their agents send them."""
        found = []
        for row in self._usage:
            tenant, device = self._senders[row.device]
            found.append(TrueQuarter(tenant, *row)._replace(device=device))
        return (*found, *self._inferred)

    def owed(self, payer: str) -> TrueOwed:
        """What a payer owes for the period's month. Raises TruthError."""
        if payer not in self.payers:
            raise TruthError(f"there is no payer {payer!r}; there are {', '.join(self.payers)}")
        return owed_by(self.contracts, payer, self.payers[payer], self.quarters())

    @property
    def contracts(self) -> TrueContracts:
        """Raises TruthError for a folder without contracts."""
        if self._contracts is None:
            raise TruthError("the scenario's folder has no contracts.toml")
        return self._contracts

    @cached_property
    def _inferred(self) -> tuple[TrueQuarter, ...]:
        found = []
        for name in self.devices:
            for (quarter, zone), count in inferred_in(self.positions(name), lambda _: self._zones, self._rule).items():
                begin = datetime.fromtimestamp(quarter * QUARTER.total_seconds(), UTC)
                found.append(TrueQuarter(*self._senders[name], begin, zone, inferred_entries=count))
        return tuple(found)

    @cached_property
    def _usage(self) -> tuple[TrueUsage, ...]:
        for device in self._entries:
            if device not in self._metered:
                positions = self.positions(device)
                self._metered[device] = [
                    *usage_of(device, positions, self._zones, self._rule),
                    *gate_usage_of(device, positions, self._gates, self._rule),
                    *whole_usage_of(device, self.records(device)),
                ]
        return tuple(sorted(row for rows in self._metered.values() for row in rows))


def _names(folder: Path) -> dict[tuple[str, str], str]:
    """The scenario name of each tenant and device."""
    return {
        (vehicle["tenant"], vehicle["device_id"] or vehicle["device"]): vehicle["device"]
        for vehicle in _read(folder / "vehicles.json")
    }


def _period(folder: Path) -> TruthPeriod:
    path = folder / "scenario.json"
    try:
        period = _read(path)["period"]
        return TruthPeriod(datetime.fromisoformat(period["start"]), datetime.fromisoformat(period["end"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TruthError(f"{path}: no period: {error!r}") from error


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TruthError(f"{path}: cannot be read: {error}") from error
