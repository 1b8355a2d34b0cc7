"""Pages and data contracts of the lake's tables, from their schemas: `python -m tests.structure.data_pages`.

A structure test compares the files with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from open_data_contract_standard.model import OpenDataContractStandard

from cloud_jobs.lake.descriptions import DESCRIPTIONS, QUARTERS, SHARED, column_text
from cloud_jobs.lake.schemas import TABLES, WRITTEN_BY
from tests.structure.sources import ROOT

COMMAND: Final = "python -m tests.structure.data_pages"
CONTRACTS: Final = ROOT / "docs" / "data-contracts"
_VERSION: Final = "1.0.0"
_STANDARD: Final = "v3.1.0"
_LOGICAL: Final = {
    "string": "string",
    "int64": "integer",
    "int32": "integer",
    "double": "number",
    "bool": "boolean",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
    "binary": "string",
}
_DELTA: Final = {
    "string": "string",
    "int64": "long",
    "int32": "integer",
    "double": "double",
    "bool": "boolean",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
    "binary": "binary",
}


def delta_type(kind: pa.DataType) -> str:
    return f"array<{delta_type(kind.value_type)}>" if pa.types.is_list(kind) else _DELTA[str(kind)]


def files() -> dict[Path, str]:
    """Each file with the text that follows from the code."""
    published = [name for name in TABLES if DESCRIPTIONS[name].is_published]
    internal = [name for name in TABLES if name not in published]
    pages = {
        ROOT / "docs" / "tables.md": _page("Tables for queries", _PUBLISHED, published, ()),
        ROOT / "docs" / "tables-internal.md": _page("Tables of the jobs", _INTERNAL, internal, published),
    }
    contracts = {CONTRACTS / f"{name}.odcs.yaml": contract(name).to_yaml() for name in published}
    return pages | contracts


_PUBLISHED: Final = """\
For everyone who queries the lake. These tables are published: each has a [data contract](data-contracts).
[data-out.md](data-out.md) has queries for them.

```
$ python -c "from deltalake import DeltaTable; print(DeltaTable('lake/usage').schema().fields[0].metadata)"
{'comment': 'Customer that owns the vehicle.'}
```

`?` marks a column that may be null. Times are UTC. `long` columns may exceed 2^53 ([traps](data-out.md#traps)).
An `array<long>` of `usage` has four numbers, one for each quarter of the hour.
"""
_INTERNAL: Final = """\
For operators who look behind a bill or a job. These tables have no data contract: their columns may change with each
version. [tables.md](tables.md) has the published tables.

```
$ python -c "from deltalake import DeltaTable; print(DeltaTable('lake/snapshots').metadata().description)"
A state of the lake that can be read for years, as commit numbers of its tables.
```

`?` marks a column that may be null. Times are UTC. Shared columns are explained below or in
[tables.md](tables.md#columns-of-several-tables).
"""


def _page(title: str, begin: str, names: Sequence[str], elsewhere: Sequence[str]) -> str:
    """The page of some tables, without the shared columns that the page of the tables `elsewhere` explains."""
    shared = [name for name in SHARED if _any_shares(names, name) and not _any_shares(elsewhere, name)]
    parts = [f"# {title}\n\n{begin}\n<!-- made by `{COMMAND}` -->"]
    parts.append("\n".join(["## Columns of several tables\n", *(f"- `{name}`: {SHARED[name]}" for name in shared)]))
    parts += ["\n".join(_section(name, names[:number])) for number, name in enumerate(names)]
    return "\n\n".join(parts) + "\n"


def _is_shared(table: str, column: str) -> bool:
    return column in TABLES[table].schema.names and column not in DESCRIPTIONS[table].columns


def _any_shares(tables: Iterable[str], column: str) -> bool:
    return any(_is_shared(table, column) for table in tables)


def _section(table: str, before: Sequence[str]) -> Iterator[str]:
    """The section of a table; columns that a table `before` it explains in the same words are only named."""
    described, layout = DESCRIPTIONS[table], TABLES[table]
    yield f"## {table}\n"
    yield f"{described.row} Written by `{WRITTEN_BY[table]}`. Key: {_names(described.key)}."
    if shared := [name for name in layout.schema.names if _is_shared(table, name)]:
        yield f"Shared columns: {_names(shared)}."
    others = [name for name in layout.schema.names if name not in shared]
    first = {
        name: next((one for one in before if DESCRIPTIONS[one].columns.get(name) == described.columns[name]), None)
        for name in others
    }
    for one in dict.fromkeys(filter(None, first.values())):
        same = (f"`{field.name}`{'?' * field.nullable}" for field in layout.schema if first.get(field.name) == one)
        yield f"As in `{one}`: {', '.join(same)}."
    yield ""
    for field in layout.schema:
        if field.name in others and first[field.name] is None:
            null = "?" if field.nullable else ""
            text = described.columns[field.name].removeprefix(QUARTERS)
            yield f"- `{field.name}` {delta_type(field.type)}{null}: {text[0].upper()}{text[1:]}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def contract(table: str) -> OpenDataContractStandard:
    """The data contract of a published table."""
    described, layout = DESCRIPTIONS[table], TABLES[table]
    return OpenDataContractStandard.model_validate(
        {
            "version": _VERSION,
            "apiVersion": _STANDARD,
            "kind": "DataContract",
            "id": f"waybill-{table.replace('_', '-')}",
            "name": f"waybill {table}",
            "status": "active",
            "description": {
                "purpose": re.split(r"(?<=\.) ", described.row)[0],
                "usage": "Read the Delta table with any reader; docs/data-out.md has queries for the rows in force.",
                "limitations": "Only the jobs of the centre write the table.",
            },
            "schema": [
                {
                    "name": table,
                    "physicalName": table,
                    "physicalType": "table",
                    "logicalType": "object",
                    "description": described.row,
                    "dataGranularityDescription": f"One row for each {', '.join(described.key)}",
                    "properties": [_property(table, field) for field in layout.schema],
                }
            ],
        }
    )


def _property(table: str, field: pa.Field) -> dict[str, Any]:
    key, partitions = DESCRIPTIONS[table].key, TABLES[table].partition_by
    made: dict[str, Any] = {
        "name": field.name,
        "physicalType": delta_type(field.type),
        "description": column_text(table, field.name),
        "required": not field.nullable,
    }
    if pa.types.is_list(field.type):
        element = field.type.value_type
        items = {"name": "element", "logicalType": _LOGICAL[str(element)], "physicalType": delta_type(element)}
        made |= {"logicalType": "array", "items": items}
    else:
        made["logicalType"] = _LOGICAL[str(field.type)]
    if field.name in key:
        made |= {"primaryKey": True, "primaryKeyPosition": key.index(field.name) + 1}
    if field.name in partitions:
        made |= {"partitioned": True, "partitionKeyPosition": partitions.index(field.name) + 1}
    return made


def main() -> None:
    CONTRACTS.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
