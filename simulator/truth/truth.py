"""The truth of one run, computed from its scenario and its journal alone."""

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from simulator.truth.charging import TrueOwed, owed_by
from simulator.truth.contracts import TrueContracts
from simulator.truth.errors import TruthError
from simulator.truth.gates import TrueGate, read_gates
from simulator.truth.journal import TruePosition, read_journal
from simulator.truth.made import Made
from simulator.truth.metering import TrueUsage, gate_usage_of, usage_of, whole_usage_of
from simulator.truth.money import Customer, TrueBill, TruePrice, bill_of
from simulator.truth.quarters import TrueDays, TrueQuarter, month_of
from simulator.truth.shapes import Zones, read_zones


class TruthPeriod(NamedTuple):
    """A service period, from `start` up to, not including, `end`."""

    start: datetime
    end: datetime


class Truth:
    """Which records exist, what was used and what is owed. Slow, plain, and sharing no code with what it judges."""

    def __init__(
        self,
        *,
        records: dict[str, Counter[Made]],
        positions: dict[str, list[TruePosition]],
        zones: Zones,
        gates: tuple[TrueGate, ...] = (),
        customers: dict[str, Customer],
        period: TruthPeriod,
        senders: dict[str, tuple[str, str]] | None = None,
        contracts: TrueContracts | None = None,
    ) -> None:
        self._records = records
        self._positions = positions
        self._zones = zones
        self._gates = gates
        self._customers = customers
        self.period = period
        self._senders = senders or {}
        self._contracts = contracts

    @classmethod
    def from_folder(cls, folder: Path | str, journal: Path | str = "made.jsonl") -> Self:
        """Read a scenario's folder and the journal (a name in it, or a path of its own). Raises TruthError."""
        folder = Path(folder)
        customers = _customers(folder)
        records: dict[str, Counter[Made]] = {}
        positions: dict[str, list[TruePosition]] = {}
        for entry in read_journal(folder / journal):
            records.setdefault(entry.device, Counter())[entry.made] += 1
            if entry.position is not None:
                positions.setdefault(entry.device, []).append(entry.position)
        return cls(
            records=records,
            positions=positions,
            zones=read_zones(folder / "fences.geojson"),
            gates=read_gates(folder / "fences.geojson"),
            customers=customers,
            period=_period(folder),
            senders={name: sender for sender, name in _names(folder).items()},
            contracts=TrueContracts.of_file(path) if (path := folder / "contracts.toml").exists() else None,
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that made a record, sorted."""
        return tuple(sorted(self._records))

    @property
    def accounts(self) -> tuple[str, ...]:
        """Every account, sorted."""
        return tuple(sorted(self._customers))

    def records(self, device: str) -> Counter[Made]:
        """The records that a device made, and how many times each."""
        # A copy: what a caller subtracts from it must not change the truth.
        return Counter(self._records.get(device, Counter()))

    def positions(self, device: str) -> list[TruePosition]:
        """The fixes that a device made, in the order of their making."""
        return list(self._positions.get(device, ()))

    def usage(self) -> tuple[TrueUsage, ...]:
        """The usage of all devices, sorted by device, quarter and zone; computed once."""
        return self._usage

    def bill(self, account: str) -> TrueBill:
        """What an account owes for the period. Raises TruthError for an unknown account."""
        if account not in self._customers:
            raise TruthError(f"there is no account {account!r}; there are {', '.join(self.accounts)}")
        return bill_of(self._customers[account], self._usage, self.period.start, self.period.end)

    @property
    def payers(self) -> dict[str, TrueDays]:
        """The payers of the contracts and, of each, the days of the month of the period in its own time zone."""
        found = {}
        for name in self._contracts.payers(self.period.end) if self._contracts else ():
            account = self._agreed.account(name, self.period.end)
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
        return tuple(found)

    def owed(self, payer: str) -> TrueOwed:
        """What a payer owes by the contracts, of the month of the period. Raises TruthError."""
        if payer not in self.payers:
            raise TruthError(f"there is no payer {payer!r}; there are {', '.join(self.payers)}")
        return owed_by(self._agreed, payer, self.payers[payer], self.quarters())

    @property
    def _agreed(self) -> TrueContracts:
        if self._contracts is None:
            raise TruthError("the scenario's folder has no contracts.toml")
        return self._contracts

    @cached_property
    def _usage(self) -> tuple[TrueUsage, ...]:
        rows: list[TrueUsage] = []
        for device, records in self._records.items():
            positions = self._positions.get(device, [])
            rows += usage_of(device, positions, self._zones)
            rows += gate_usage_of(device, positions, self._gates)
            rows += whole_usage_of(device, records)
        return tuple(sorted(rows))


def _customers(folder: Path) -> dict[str, Customer]:
    tariffs = {tariff["id"]: tariff for tariff in _read(folder / "tariffs.json")}
    names = _names(folder)
    customers: dict[str, Customer] = {}
    for account in _read(folder / "accounts.json"):
        try:
            tariff = tariffs[account["tariff"]]
            if tariff["currency"] != account["currency"]:
                raise TruthError(f"account {account['id']}: its tariff is in another currency")
            prices = tuple(TruePrice(p["meter"], p["zone"], Decimal(p["unit_amount"])) for p in tariff["prices"])
            devices = tuple(names[vehicle["tenant"], vehicle["device"]] for vehicle in account["vehicles"])
            customers[account["id"]] = Customer(account["id"], account["name"], account["currency"], devices, prices)
        except (KeyError, TypeError, ArithmeticError) as error:
            raise TruthError(f"{folder}: account or tariff cannot be understood: {error!r}") from error
    return customers


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
    except (OSError, ValueError) as error:
        raise TruthError(f"{path}: cannot be read: {error}") from error
