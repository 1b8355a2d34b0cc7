"""Recorded tracks that are replayed, and the files of a scenario: its description and its track."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from simulator.errors import ScenarioError, TrackError
from simulator.folder import SCENARIO_FILE, TRACK_COLUMNS, read_folder
from simulator.replay import COLUMNS, read_recording
from tests.fuzz.bounds import check_refusal
from tests.simulator.test_scenario import fleet

FOLDER = Path(tempfile.mkdtemp(prefix="waybill-fuzz-track-"))
TRACK = FOLDER / "track.csv"
HEADER = ",".join(COLUMNS).encode() + b"\n"
SCENARIO_HEADER = ",".join(TRACK_COLUMNS).encode() + b"\n"
SCENARIO = json.dumps(fleet().model_dump(mode="json") | {"track": TRACK.name}).encode()
_RECORDED, _WRITTEN, _DESCRIBED = 0, 1, 2
_KINDS = 3


def seeds() -> Iterable[bytes]:
    """A track as it is recorded and as it is written, a scenario, and rows that are odd, short or long."""
    yield b"\x00" + HEADER + b"v,t,2026-01-05T12:00:00Z,50.1,9.9,12\nv,t,2026-01-05 12:00:10+01:00,50.1,9.9,\n"
    yield b"\x00\xef\xbb\xbf" + HEADER + b"v,t,0001-01-01T00:00:00+23:59,50,9,\nv,t,9999-12-31T23:59:59-23:59,50,9,1\n"
    yield b"\x00" + HEADER + b'"v\n,,\n' + b"v,t,2026-01-05,nan,1e400,inf\n" + b"x" * 5000
    yield b"\x00" + HEADER + b"v," + b"t" * 140_000
    yield b"\x01" + SCENARIO_HEADER + b"d,1767614400000,50.1,9.9,12.5,t\nd,1767614401000,50.1,9.9,,t\n"
    yield b"\x01" + SCENARIO_HEADER + b"d,1\nd," + b"9" * 5000 + b",1,1,1,t\n"
    yield b"\x01" + SCENARIO_HEADER + b'd,1,"' + b"1" * 140_000
    yield b"\x02" + SCENARIO
    yield b"\x02" + b"[" * 9000


def judge(data: bytes) -> None:
    """A recording, or TrackError; a scenario, or ScenarioError: each names the file and is short."""
    kind, content = data[:1], data[1:]
    if not kind:
        return
    TRACK.write_bytes(content)
    (FOLDER / SCENARIO_FILE).write_bytes(content if kind[0] % _KINDS == _DESCRIBED else SCENARIO)
    try:
        if kind[0] % _KINDS == _RECORDED:
            recording = read_recording(TRACK)
            assert sum(map(len, recording.fixes.values())) + sum(recording.left_out.values()) == recording.rows
        else:
            read_folder(FOLDER)
    except (TrackError, ScenarioError) as error:
        check_refusal(error)
