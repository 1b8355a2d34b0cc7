"""The lake of the page about the bill: two vehicles drove for an hour, and one of them fell silent before its end."""

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.snapshots import fences_number, note_tracks
from cloud_jobs.lake.tables import FENCES, INGEST, TRACKS
from cloud_jobs.lake.transactions import counter_of, newest_number
from cloud_jobs.reference.files import read_reference
from edge_agent.intake.messages import parse_message
from geo.reference.in_force import published_fences
from geo.spatial import TrackSettings
from simulator import drive, write_folder
from simulator.messages import VehicleMessage, journal_entry
from tests.cloud_jobs.publications import row_of
from tests.example_fleet import EPOCHS, TENANT, example_scenario
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import commit_ingest, derive, records_table
from tests.usage_rows import metered_rows
from waybill.record import IntervalSet

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
NOW: Final = datetime(2026, 1, 6, 9, 30, tzinfo=UTC)
LATE: Final = ("eu-0001", 120)
"""The vehicle, and how many of its last records the centre gets a day later."""
PARTS: Final = ("latitude", "longitude", "altitude_m", "speed_mps", "heading_deg", "accuracy_m")
SCENARIO: Final = example_scenario()

Row = dict[str, Any]


class PageLake:
    """A lake with the contracts of the page about contracts, and what the jobs commit of two vehicles."""

    def __init__(self, folder: Path) -> None:
        self.lake = new_lake(folder / "lake")
        write_folder(folder / "scenario", SCENARIO)
        contracts = re.findall(r"```toml\n(.*?)```", (DOCS / "contracts.md").read_text(encoding="utf-8"), re.DOTALL)[0]
        (folder / "contracts.toml").write_text(contracts, encoding="utf-8")
        versions = read_reference([folder / "scenario" / "fences.geojson", folder / "contracts.toml"])
        rows = [row_of(version.kind, version.id, version.body, number) for number, version in enumerate(versions)]
        self.lake.append("reference", rows)
        name, count = LATE
        self._has_arrived = False
        self._records = _records()
        self._late = self._records[name][-count:]
        del self._records[name][-count:]
        self._ingest([row for rows in self._records.values() for row in rows])
        self._meter()

    def arrive(self) -> None:
        """The vehicle that was silent sends what it still had, and states that it has no more."""
        self._has_arrived = True
        self._records[LATE[0]] += self._late
        self._ingest(self._late)
        self._meter()

    def _ingest(self, rows: Sequence[Row]) -> None:
        number = counter_of(newest_number(self.lake.open("records"), INGEST)) + 1
        table = records_table([row | {"ingest_number": number} for row in rows])
        known = {}
        for device, made in self._records.items():
            # who is silent states no more than when its last record was made
            stated = made[-1]["device_time"] if device == LATE[0] and not self._has_arrived else NOW
            us = round(stated.timestamp() * 1_000_000)
            head = len(made)
            covered = Coverage(IntervalSet([(1, head)]), head=head, stated_us=us, stated_head=head)
            known[DeviceStream(TENANT, device, EPOCHS[device])] = covered.completed()
        commit_ingest(self.lake, write_data_files(self.lake.files("records"), table, NOW), known)

    def _meter(self) -> None:
        """What the usage job writes: rows that are other than those there."""
        there = {*self.lake.rows("usage", ["digest"])["digest"].to_pylist()}
        rows = self.lake.rows("records").to_pylist()
        records = [row | {"t_ms": round(row["device_time"].timestamp() * 1000)} for row in rows]
        fences = published_fences(self.lake.rows("reference").to_pylist()).features
        usage = [row for row in metered_rows(records, fences) if row["digest"] not in there]
        states = {FENCES: fences_number(fences), TRACKS: note_tracks(self.lake, TrackSettings().model_dump())}
        derive(self.lake, "usage", [row | {"computed_at": NOW, "day": row["hour"].date()} for row in usage], states)


def _reason(message: VehicleMessage) -> str:
    return parse_message(message.topic, message.payload)[0].malformed


def _records() -> dict[str, list[Row]]:
    """The records of each vehicle, in the order in which it made them."""
    made: defaultdict[str, list[Row]] = defaultdict(list)
    for message in drive(SCENARIO):
        entry, of_device = journal_entry(message), made[message.device]
        moment = datetime.fromtimestamp((SCENARIO.start_ms + round(message.offset_s * 1000)) / 1000, UTC)
        of_device.append(
            {name: entry["content"].get(name) for name in PARTS}
            | {"tenant": TENANT, "device": message.device, "epoch": EPOCHS[message.device], "seq": len(of_device) + 1}
            | {"kind": entry["kind"], "device_time": moment, "device_date": moment.date(), "received_at": moment}
            | {"region": SCENARIO.vehicles[0].region, "text": _reason(message) if entry["kind"] == "raw" else None}
        )
    return dict(made)
