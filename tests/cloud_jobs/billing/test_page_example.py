"""The bill's page shows what its commands print of the lake of two vehicles that drove for an hour."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from typer.testing import CliRunner

from cloud_jobs.billing.cli import app
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.schemas import REFERENCE, USAGE
from cloud_jobs.lake.tables import COVERS, Lake
from cloud_jobs.reference_files import read_reference
from cloud_jobs.usage.metering import METERED
from simulator import drive, write_folder
from simulator.messages import journal_entry
from telemetry import IntervalSet
from tests.cloud_jobs.publications import row_of
from tests.example_fleet import EPOCHS, TENANT, example_scenario
from tests.system.lake_of_fixes import cover, records_table
from tests.usage_rows import metered_rows

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "billing.md").read_text(encoding="utf-8")
SESSION = PAGE.split("```")[1]
RECEIVED = datetime(2026, 11, 22, 15, 11, 42, tzinfo=UTC)
COMPUTED = datetime(2026, 11, 22, 15, 18, 10, tzinfo=UTC)
COMMITTED_MS = int(datetime(2026, 11, 22, 15, 20, tzinfo=UTC).timestamp() * 1000)
SCENARIO = example_scenario()
PARTS = ("latitude", "longitude", "altitude_m", "speed_mps", "heading_deg", "accuracy_m")


def records() -> list[dict[str, Any]]:
    """The records of each vehicle, in the order in which it made them."""
    heads: defaultdict[str, int] = defaultdict(int)
    rows = []
    for message in drive(SCENARIO):
        entry, device = journal_entry(message), message.device
        heads[device] += 1
        moment = datetime.fromtimestamp((SCENARIO.start_ms + round(message.offset_s * 1000)) / 1000, UTC)
        rows.append(
            {name: entry["content"].get(name) for name in PARTS}
            | {"tenant": TENANT, "device": device, "epoch": EPOCHS[device], "seq": heads[device], "kind": entry["kind"]}
            | {"device_time": moment, "device_date": moment.date(), "received_at": RECEIVED, "ingest_number": 1}
        )
    return rows


def metered(rows: list[dict[str, Any]], fences: list[str]) -> pa.Table:
    records = [row | {"t_ms": round(row["device_time"].timestamp() * 1000)} for row in rows]
    usage = pa.Table.from_pylist(metered_rows(records, fences), schema=METERED)
    computed = pa.array([COMPUTED] * len(usage), USAGE.field("computed_at").type)
    number = pa.array([1] * len(usage))
    return usage.append_column("computed_at", computed).append_column("commit_number", number).cast(USAGE)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.create()
    rows = records()
    write_folder(tmp_path / "reference", SCENARIO)
    versions = read_reference([tmp_path / "reference"])
    published = [
        row_of(version.kind, version.id, version.body, number) | {"collected_at": RECEIVED}
        for number, version in enumerate(versions)
    ]
    write_deltalake(made.path("records"), records_table(rows), mode="append")
    write_deltalake(made.path("reference"), pa.Table.from_pylist(published, schema=REFERENCE), mode="append")
    usage = metered(rows, [version.body for version in versions if version.kind == "fence"])
    covers = CommitProperties(app_transactions=[Transaction(COVERS, 1)])
    write_deltalake(made.path("usage"), usage, mode="append", commit_properties=covers)
    heads = {device: max(row["seq"] for row in rows if row["device"] == device) for device in EPOCHS}
    cover(
        made,
        {
            DeviceStream(TENANT, device, EPOCHS[device]): Coverage(IntervalSet([(1, head)]), head=head)
            for device, head in heads.items()
        },
    )
    for log in Path(made.path("")).glob("*/_delta_log/*.json"):
        # as if it had been written before the moment of the page's bill
        text = re.sub(r'"timestamp":\d+', f'"timestamp":{COMMITTED_MS}', log.read_text())
        log.write_text(re.sub(r'"committed_us","version":\d+', f'"committed_us","version":{COMMITTED_MS}000', text))
    return made


def test_the_commands_of_the_page_print_what_stands_below_them(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(str(lake.location)).parent)
    shown = re.findall(r"^\$ waybill bill ([^;\n]+)(; echo \$\?)?\n((?:[^$].*\n)*)", SESSION, re.MULTILINE)
    assert [command.split()[0] for command, _, _ in shown] == ["show", "open", "issue", "issue"]
    for command, says_status, expected in shown:
        result = CliRunner().invoke(app, command.split())
        lines = [*result.output.splitlines(), *([str(result.exit_code)] if says_status else [])]
        printed = "".join(f"{line.rstrip()}\n" for line in lines)
        # a row of dots stands for rows that the page leaves out
        pattern = r"(?:│.*\n)+".join(re.escape(part) for part in expected.split("│ …\n"))
        assert re.fullmatch(pattern, printed), printed
