"""The truth of one run, computed from its scenario and its journal alone."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from simulator.truth.charging import TrueOwed, owed_by
from simulator.truth.contracts import TrueContracts
from simulator.truth.errors import TruthError
from simulator.truth.gaps import TrueUnknown, inferred_in, unknown_of
from simulator.truth.gates import TrueGate, read_gates
from simulator.truth.journal import Entry, TruePosition, read_journal
from simulator.truth.made import Made
from simulator.truth.metering import TrueUsage, gate_usage_of, usage_of, whole_usage_of
from simulator.truth.quarters import QUARTER, TrueDays, TrueQuarter, month_of
from simulator.truth.shapes import Zones, read_zones
from simulator.truth.track import TrueRule


class TruthPeriod(NamedTuple):
    """A service period, from `start` up to, not including, `end`."""

    start: datetime
    end: datetime


class Truth:
    """Which records exist, what was used and what is owed. Slow, plain, and sharing no code with what it judges."""

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
        """`entries`: of each device what it made, in the order of its making. `rule`: that of tracks."""
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
        """Read a scenario's folder and the journal (a name in it, or a path of its own). Raises TruthError."""
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
        """The truth by what is known so far: of each device in `known` these records, of the others all."""
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
        # Slow to compute, and the same for a device of which all is known.
        self.usage()
        partly._metered = {device: rows for device, rows in self._metered.items() if device not in known}
        return partly

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that made a record, sorted."""
        return tuple(sorted(self._entries))

    def records(self, device: str) -> Counter[Made]:
        """The records that a device made, and how many times each."""
        return Counter(entry.made for entry in self._entries.get(device, []))

    def positions(self, device: str) -> list[TruePosition]:
        """The fixes that a device made, in the order of their making."""
        return [entry.position for entry in self._entries.get(device, []) if entry.position is not None]

    def usage(self) -> tuple[TrueUsage, ...]:
        """The usage of all devices, sorted by device, quarter and zone; computed once."""
        return self._usage

    def unknown(self) -> tuple[TrueUnknown, ...]:
        """What is not known of the ways of all devices, and what they drove, sorted by device and quarter."""
        found = (unknown_of(one, self.positions(one), self._zones, self._rule) for one in self.devices)
        return tuple(row for rows in found for row in rows)

    @property
    def payers(self) -> dict[str, TrueDays]:
        """The payers of the contracts and, of each, the days of the month of the period in its own time zone."""
        found = {}
        for name in self.contracts.payers(self.period.end):
            account = self.contracts.account(name, self.period.end)
            assert account is not None
            assert account.payer is not None
            found[name] = month_of(account.payer.time_zone, self.period.start.year, self.period.start.month)
        return found

    def quarters(self) -> tuple[TrueQuarter, ...]:
        """The usage of all devices, each by tenant and device as its agent sends them."""
        found = []
        for row in self._usage:
            tenant, device = self._senders[row.device]
            found.append(TrueQuarter(tenant, *row)._replace(device=device))
        return (*found, *self._inferred)

    def owed(self, payer: str) -> TrueOwed:
        """What a payer owes by the contracts, of the month of the period. Raises TruthError."""
        if payer not in self.payers:
            raise TruthError(f"there is no payer {payer!r}; there are {', '.join(self.payers)}")
        return owed_by(self.contracts, payer, self.payers[payer], self.quarters())

    @property
    def contracts(self) -> TrueContracts:
        """What was agreed. Raises TruthError for a folder without contracts."""
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
    """The name in the scenario of each tenant and device."""
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
