"""Reading the lake's Delta tables without Spark: as they are, or as they were at a moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from cloud_jobs.billing.bill import Bill, bill
from cloud_jobs.billing.completeness import Certificate, CoverageRow, certify
from cloud_jobs.billing.errors import LakeReadError
from cloud_jobs.billing.lines import Line
from cloud_jobs.billing.period import Period
from cloud_jobs.billing.reference import Account, Tariff, parse
from cloud_jobs.billing.seq_ranges import SeqRanges
from cloud_jobs.billing.usage import UsageRow
from telemetry import IntervalSet

Row = dict[str, Any]
_Made = TypeVar("_Made")

_RECORD_COLUMNS = "epoch, seq, kind, device_time, latitude, longitude, speed_mps, accuracy_m, received_at"

MAX_RECORDS_SHOWN = 100_000
"""The most records that one line is opened to."""


@dataclass(frozen=True, slots=True)
class LakeReader:
    """The folder of the tables. Reads are as of a moment in UTC.

    Usage and reference rows carry their own times and are never changed. Coverage is written over, so its past is read
    from the table's history; before the beginning of that history nothing is known, and every device is open.
    """

    folder: Path

    def bill(self, account_id: str, period: Period, as_of: datetime) -> Bill:
        """The account's bill as the lake knew it at `as_of`. Raises BillingError."""
        account = self.account(account_id, as_of)
        devices = [vehicle.device for vehicle in account.vehicles]
        return bill(
            account,
            self.tariff_versions(account.tariff, as_of),
            self.usage(devices, period, as_of),
            period=period,
            as_of=as_of,
            completeness=self.certificates(devices, as_of),
        )

    def accounts(self, as_of: datetime) -> list[str]:
        """The ids of all accounts published by then, in order."""
        where = f"kind IN ('account', 'accounts') AND published_at <= {_timestamp(as_of)}"
        return sorted({row["id"] for row in self._rows("reference", "id", where)})

    def account(self, account_id: str, as_of: datetime) -> Account:
        """The account as published last. Raises LakeReadError, naming the accounts there are."""
        bodies = self._published("account", account_id, as_of)
        if not bodies:
            there = ", ".join(self.accounts(as_of)) or "none"
            raise LakeReadError(f"no account {account_id!r} was published by {as_of.isoformat()}; there are: {there}")
        return parse(Account, bodies[-1])

    def tariff_versions(self, tariff_id: str, as_of: datetime) -> list[Tariff]:
        """All versions of the tariff; of those with one effective date, the one published last."""
        versions = [parse(Tariff, body) for body in self._published("tariff", tariff_id, as_of)]
        return list({version.effective_from: version for version in versions}.values())

    def usage(self, devices: Iterable[str], period: Period, as_of: datetime) -> list[UsageRow]:
        """The usage rows of the devices in the period, computed by then."""
        where = (
            f"device IN ({_texts(devices)}) AND hour >= {_timestamp(period.start)} AND hour < {_timestamp(period.end)}"
            f" AND computed_at <= {_timestamp(as_of)}"
        )
        return [_read("usage", _usage_row, row) for row in self._rows("usage", "*", where)]

    def certificates(self, devices: Iterable[str], as_of: datetime) -> dict[str, Certificate]:
        """The completeness of each device."""
        devices = list(devices)
        of: dict[str, list[CoverageRow]] = {device: [] for device in devices}
        for row in self._rows("coverage", "*", f"device IN ({_texts(devices)})", as_of):
            of[row["device"]].append(_read("coverage", _coverage, row))
        return {device: certify(device, rows) for device, rows in of.items()}

    def records(self, line: Line) -> Iterator[Row]:
        """The records that a line was computed from, by epoch and seq, at most MAX_RECORDS_SHOWN."""
        left = MAX_RECORDS_SHOWN
        for epoch, seqs in line.seq_ranges:
            where = (
                f"device = {_text(line.key.device)} AND epoch = {epoch}"
                f" AND seq BETWEEN {seqs.first} AND {seqs.last} ORDER BY seq"
            )
            for row in self._rows("records", _RECORD_COLUMNS, where):
                if row["seq"] in seqs:
                    if not left:
                        return
                    left -= 1
                    yield row

    def _published(self, kind: str, reference_id: str, as_of: datetime) -> list[str]:
        where = f"kind IN ('{kind}', '{kind}s') AND id = {_text(reference_id)} AND published_at <= {_timestamp(as_of)}"
        rows = self._rows("reference", "body", f"{where} ORDER BY published_at, place NULLS FIRST, body")
        return [row["body"] for row in rows]

    def _rows(self, name: str, columns: str, where: str, as_of: datetime | None = None) -> Iterator[Row]:
        query = f"SELECT {columns} FROM {name} WHERE {where}"  # noqa: S608 - every text in it went through _text
        try:
            table = DeltaTable(self.folder / name)
            if as_of is not None and not _load_as_of(table, as_of):
                return
            batches = list(QueryBuilder().register(name, table).execute(query))
        except TableNotFoundError as error:
            raise LakeReadError(
                f"there is no table {name!r} in the lake {self.folder}; run the job that writes it"
            ) from error
        except (DeltaError, ValueError, OSError) as error:
            raise LakeReadError(f"table {name!r} of the lake {self.folder} cannot be read: {error}") from error
        for batch in batches:
            table_columns = {column: batch.column(column).to_pylist() for column in batch.schema.names}
            for values in zip(*table_columns.values(), strict=True):
                yield dict(zip(table_columns, values, strict=True))


def _load_as_of(table: DeltaTable, as_of: datetime) -> bool:
    """Load the table's version of that moment; False when the table did not exist yet."""
    stamps = sorted((entry["timestamp"], entry["version"]) for entry in table.history())
    moment_ms = as_of.timestamp() * 1000
    if moment_ms >= stamps[-1][0]:
        return True
    known = [version for committed_ms, version in stamps if committed_ms <= moment_ms]
    if known:
        table.load_as_version(max(known))
    return bool(known)


def _usage_row(row: Row) -> UsageRow:
    return UsageRow(
        device=row["device"],
        hour=_utc(row["hour"]),
        zone=row["zone"],
        distance_mm=row["distance_mm"],
        duration_ms=row["duration_ms"],
        entries=row["entries"],
        seq_ranges=SeqRanges.parse(row["seq_ranges"]),
        computed_at=_utc(row["computed_at"]),
    )


def _coverage(row: Row) -> CoverageRow:
    return CoverageRow(
        device=row["device"],
        epoch=row["epoch"],
        received=IntervalSet(json.loads(row["received"])),
        declared_lost=IntervalSet((first, last) for first, last, *_ in json.loads(row["tombstones"])),
        head=row["head"],
    )


def _read(table: str, make: Callable[[Row], _Made], row: Row) -> _Made:
    try:
        return make(row)
    except (ValueError, TypeError, KeyError) as error:
        raise LakeReadError(f"table {table!r} holds a row that cannot be read: {row}: {error}") from error


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _texts(values: Iterable[str]) -> str:
    return ", ".join(_text(value) for value in values) or "''"


def _timestamp(moment: datetime) -> str:
    return f"to_timestamp('{moment.astimezone(UTC).isoformat()}')"
