"""The queries of `docs/data-out.md` in DuckDB and Polars, by the code of the page, on a real lake."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from cloud_jobs.lake.descriptions import DESCRIPTIONS, column_text
from cloud_jobs.lake.schemas import TABLES
from tests.cloud_jobs.lake.queried import FOUND, PAGE, QUERIES, code_with, json_expression, queried_lake


def test_each_query_has_its_rows_and_is_on_the_page() -> None:
    names = {path.name for path in QUERIES.iterdir()}
    assert {name.removesuffix(".sql") for name in names if ".spark." not in name} == FOUND.keys()
    assert all(f"`{name}`" in PAGE for name in names)


def utc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()}
        for row in rows
    ]


def run(engine: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the page's code names `lake`, after its run."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(code_with(f"import {engine}"), names)  # noqa: S102 - the page of this repository
    return names["lake"]


def test_duckdb_finds_the_rows_and_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queried_lake(tmp_path)
    lake = run("duckdb", tmp_path, monkeypatch)
    assert capsys.readouterr().out.strip() in PAGE
    for name, rows in FOUND.items():
        assert utc(lake.sql((QUERIES / f"{name}.sql").read_text()).to_arrow_table().to_pylist()) == rows, name
    driver = lake.view("records").filter("kind = 'event'").project(json_expression("DuckDB"))
    assert driver.fetchall() == [("7",)]


def test_polars_finds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queried_lake(tmp_path)
    lake = run("polars as pl", tmp_path, monkeypatch)
    for name, rows in FOUND.items():
        assert utc(lake.execute((QUERIES / f"{name}.sql").read_text()).collect().to_dicts()) == rows, name
    driver = eval(json_expression("Polars"), {"pl": pl})  # noqa: S307 - the page of this repository
    assert pl.scan_delta("lake/records").filter(kind="event").select(driver).collect().rows() == [("7",)]


def test_the_tables_carry_their_descriptions(tmp_path: Path) -> None:
    queried_lake(tmp_path)
    for table in TABLES:
        opened = DeltaTable(str(tmp_path / "lake" / table))
        assert opened.metadata().description == DESCRIPTIONS[table].row
        comments = {field.name: field.metadata["comment"] for field in opened.schema().fields}
        assert comments == {name: column_text(table, name) for name in TABLES[table].schema.names}
