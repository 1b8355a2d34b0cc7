"""What a trial's device sends: tracks that are shifted to now, the line to copy, and the files of a trial."""

from __future__ import annotations

import json
import socket
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_jobs.reference.files import read_reference
from deploy.local.stack import DEFAULT_TOPOLOGY
from deploy.local.stack_settings import agent_text
from deploy.trial.errors import TrialError
from deploy.trial.files import contracts_text, fence_text, one_region
from deploy.trial.phone import FILTER, PhoneListener
from deploy.trial.servers import Place, check_port_free
from deploy.trial.sources import (
    Message,
    MessageReader,
    Track,
    apart_m,
    line_to_copy,
    read_track,
    simulated_track,
)
from edge_agent.config import AgentSettings
from geo.replication import Topology
from waybill.settings import load

NOW_MS = 1_795_000_000_000
READER = MessageReader(("vehicle/#",))
GPX = """<?xml version="1.0"?><gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>
<trkpt lat="53.5" lon="9.9"><ele>1</ele><time>2026-01-05T08:00:00Z</time></trkpt>
<trkpt lat="53.6" lon="9.9"><time>2026-01-05T08:10:00Z</time></trkpt>
<trkpt lat="53.7" lon="9.9"></trkpt></trkseg></trk></gpx>"""


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def read_all(track: Track) -> list[tuple[str, int]]:
    """The kinds of all messages as the agent reads them, and how many seconds ago the newest was."""
    found = [READER.heard(*one, NOW_MS)[0] for one in track.messages()]
    assert not any(one.malformed for one in found)
    return [(kind, round(one.lag_s or 0)) for one in found for kind in one.kinds]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.gpx", GPX),
        ("a.csv", "Time,Lat,Lon\n2026-01-05T08:00:00Z,53.5,9.9\n2026-01-05T09:10:00+01:00,53.6,9.9\n"),
        ("b.csv", "device_id;t_ms;latitude;longitude\nx;1767600000000;53.5;9.9\nx;1767600600000;53.6;9.9\n"),
        ("c.csv", "timestamp,lng,lat\n1767600600,9.9,53.6\n1767600000,9.9,53.5\n1767600000,9.9,53.5\n"),
    ],
)
def test_a_track_ends_now_and_is_labelled(tmp_path: Path, name: str, text: str) -> None:
    track = read_track(written(tmp_path, name, text)).shifted(NOW_MS)
    assert [one.t_ms - NOW_MS for one in track.fixes] == [-600_000, 0]
    assert track.end == Place(53.6, 9.9)
    assert read_all(track) == [("position", 0), ("position", 0), ("event", 0)]
    *_, last = track.messages()
    assert json.loads(last.payload)["name"] == "replay"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "time,lat\n1,2\n", "no column lon or lng or long or longitude"),
        ("a.csv", "time,lat,lon\n1767600000,53,9\nnever,53,9\n", "a.csv:3 is not a fix: time 'never'"),
        ("a.csv", "time,lat,lon\n1767600000,53,999\n", "out of range"),
        ("a.csv", "time,lat,lon\n1767600000,53,9\n", "1 fixes"),
        ("a.csv", "", "no column"),
        ("a.gpx", "<gpx>", "not GPX"),
        ("missing.csv", None, "cannot be read"),
    ],
)
def test_a_track_that_cannot_be_used_names_the_place(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    file = tmp_path / name if text is None else written(tmp_path, name, text)
    with pytest.raises(TrialError, match=words):
        read_track(file)


def test_fixes_at_which_a_replayed_track_stands_at_its_end_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [f"{1767600000 + at * 60},{53.5 + min(at, 20) * 0.002},9.9" for at in range(60)]
    track = read_track(written(tmp_path, "a.csv", "\n".join(["time,lat,lon", *rows])))
    assert len(track.fixes) == 23
    assert track.label.endswith("shifted in time; 37 fixes at its end left out, where it stands")


def test_a_simulated_drive_says_so_and_ends_with_a_move_into_its_fence() -> None:
    track = simulated_track(3).shifted(NOW_MS)
    assert "simulated" in track.label
    inside = [one for one in track.fixes if apart_m(one.place, track.end) < 300]
    assert 0 < len(inside) < len(track.fixes)
    assert NOW_MS - inside[0].t_ms < 300_000
    assert read_all(track)[-1][0] == "event"


def test_the_line_to_copy_drives_into_the_fence() -> None:
    place = Place(53.55, 9.99)
    line = line_to_copy(place, 20123)
    assert line.startswith("mosquitto_pub -p 20123 -q 1 -t vehicle/position -m ")
    payload = subprocess.run(
        ["bash", "-c", line.replace("mosquitto_pub -p 20123 -q 1 -t vehicle/position -m", "printf %s")],
        capture_output=True,
        check=True,
        timeout=10,
    ).stdout
    first, last = json.loads(payload)
    now_ms = datetime.now(UTC).timestamp() * 1000
    assert 0 <= now_ms - last["time"] < 10_000
    seen, newest = READER.heard("vehicle/position", payload, round(now_ms))
    assert seen.kinds == ("position", "position")
    assert newest is not None
    assert newest.place == place
    assert 400 < apart_m(Place(first["latitude"], first["longitude"]), place) < 1000
    assert 39_000 < last["time"] - first["time"] < 41_000


@pytest.mark.parametrize(
    ("message", "near"),
    [
        (Message("vehicel/position", b"{}"), "vehicle/position"),
        (Message("vehicle/positions", b"{}"), "vehicle/position"),
    ],
)
def test_a_wrong_topic_has_a_near_one(message: Message, near: str) -> None:
    assert READER.heard(*message, NOW_MS)[0].near == near


def test_the_files_of_a_trial_are_settings_that_load(tmp_path: Path) -> None:
    text = agent_text(
        device="try-1",
        tenant="fleet",
        buffer=tmp_path / "buffer",
        region="eu",
        broker_port=1883,
        uplink_port=8883,
        enrolment_port=8884,
        ca=tmp_path / "ca.pem",
        token_file=tmp_path / "token",
        status_port=9465,
    )
    settings = load(AgentSettings, written(tmp_path, "agent.toml", text))
    assert (settings.device.id, settings.intake.port, settings.uplinks[0].port) == ("try-1", 1883, 8883)
    written(tmp_path, "fences.geojson", fence_text("try-1", Place(53.55, 9.99), 300.0))
    written(
        tmp_path, "contracts.toml", contracts_text("try-1", ("fleet", "TRY-1"), "eu", datetime(2026, 11, 1, tzinfo=UTC))
    )
    (tmp_path / "agent.toml").unlink()
    assert sorted(one.kind for one in read_reference([tmp_path])) == ["account", "fence", "legal_entity", "tariff"]


def test_the_stack_of_a_trial_has_one_region(tmp_path: Path) -> None:
    topology = load(Topology, written(tmp_path, "topology.toml", one_region(DEFAULT_TOPOLOGY.read_text(), "eu")))
    assert ({*topology.regions}, {*topology.clusters}, topology.operators) == ({"eu"}, {"hq"}, ("fleet",))
    assert tomllib.loads(DEFAULT_TOPOLOGY.read_text())["namespaces"].keys() == topology.namespaces.keys()


def test_a_port_that_is_taken_is_named_with_its_owner() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(TrialError, match=rf"port {port} is taken by .* \(process \d+\)") as refused:
            check_port_free(port)
    assert refused.value.command.startswith("waybill try")
    check_port_free(port)


def test_a_phone_may_write_its_own_topics_and_nothing_else(tmp_path: Path) -> None:
    listener = PhoneListener(address="127.0.0.1", port=20001, device="try-1")
    listener.server(tmp_path / "phone", 1883)
    assert (tmp_path / "phone" / "rules.acl").read_text() == f"user phone\ntopic write {FILTER}\n"
    assert listener.password not in (tmp_path / "phone" / "passwords").read_text()
    assert listener.password not in repr(listener) + listener.exposed
    assert "no TLS" in listener.exposed
    assert len(listener.qr_code().splitlines()) > 20
