"""The lake: one folder of Delta tables, and how they are opened without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema

from cloud_jobs.errors import LakeError
from cloud_jobs.tables import (
    COVERAGE,
    ENCOUNTERS,
    GEOFENCE_EVENTS,
    INGEST_BATCHES,
    QUARANTINE,
    RECORDS,
    REFERENCE,
    USAGE,
)

_TABLES: dict[str, tuple[pa.Schema, list[str]]] = {
    "records": (RECORDS, ["device_date"]),
    "coverage": (COVERAGE, []),
    "quarantine": (QUARANTINE, []),
    "ingest_batches": (INGEST_BATCHES, []),
    "usage": (USAGE, []),
    "geofence_events": (GEOFENCE_EVENTS, ["day"]),
    "encounters": (ENCOUNTERS, ["day"]),
    "reference": (REFERENCE, []),
}

_CONFIGURATION = {
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}


@dataclass(frozen=True, slots=True)
class Lake:
    """The folder of the centre's tables."""

    folder: Path

    def path(self, table: str) -> str:
        """Where a table is."""
        return str(self.folder / table)

    def create(self) -> None:
        """Makes the tables that are not there yet, and the columns that an earlier version did not know: null there.

        Raises LakeError for a table with columns that this version does not know.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, (schema, partitions) in _TABLES.items():
            if not DeltaTable.is_deltatable(self.path(name)):
                DeltaTable.create(
                    self.path(name),
                    schema=schema,
                    mode="ignore",
                    partition_by=partitions,
                    configuration=_CONFIGURATION,
                )
                continue
            table = self.open(name)
            there = {field.name for field in table.schema().fields}
            if other := there - set(schema.names):
                raise LakeError(
                    f"table {name} in {self.folder} has columns of another version ({', '.join(sorted(other))});"
                    " begin with a new lake"
                )
            if new := [field for field in schema if field.name not in there and field.nullable]:
                table.alter.add_columns(DeltaSchema.from_arrow(pa.schema(new)).fields)

    def open(self, table: str) -> DeltaTable:
        """A table as it is now."""
        return DeltaTable(self.path(table))

    def rows(self, table: str, columns: list[str] | None = None) -> pa.Table:
        """All rows of a small table, and the Delta version they are of in the schema's metadata."""
        return pa.table(self.open(table).to_pyarrow_table(columns=columns))

    def append(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Adds rows to a small table, in one commit."""
        if rows:
            schema = _TABLES[table][0]
            write_deltalake(self.path(table), pa.Table.from_pylist(rows, schema=schema), mode="append")

    def replace(self, table: str, rows: list[dict[str, Any]], note: dict[str, str]) -> None:
        """Puts rows in the place of all rows of a small table, in one commit that carries `note`."""
        write_deltalake(
            self.path(table),
            pa.Table.from_pylist(rows, schema=_TABLES[table][0]),
            mode="overwrite",
            commit_properties=CommitProperties(custom_metadata=note),
        )

    def commit_metadata(self, table: str) -> dict[str, Any]:
        """What the newest commit of a table carries beside its rows."""
        return self.open(table).history(1)[0]
