"""Files of fences, tariffs and accounts: each fault has its file and place, and what has none is published."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pulsar import ConnectError
from typer.testing import CliRunner

from cloud_jobs import reference_files
from cloud_jobs.__main__ import app
from cloud_jobs.errors import ReferenceFileError, ReferenceNotPublished
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference_files import publish, read_reference, warnings
from simulator import generated_scenario, write_folder

RING = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
FENCE = {"type": "Feature", "properties": {"id": "a"}, "geometry": {"type": "Polygon", "coordinates": [RING]}}
ACCOUNT = {"id": "acme", "name": "Acme", "currency": "EUR", "tariff": "t", "vehicles": []}
TARIFF = {"id": "t", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "prices": []}


def file_of(folder: Path, name: str, content: Any) -> Path:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("fences.geojson", "[1]", "line 1"),
        ("fences.geojson", {"type": "Feature", "properties": None}, "line 1"),
        ("fences.geojson", [FENCE, FENCE | {"geometry": None}], "feature 2"),
        ("fences.geojson", "{", "line 1"),
        ("zones.json", {"type": "FeatureCollection", "features": [{"type": "Feature", "id": 3}]}, "line 1"),
        ("tariffs.json", "{}", "line 1"),
        ("tariffs.json", '["a"]', "entry 1: is neither a tariff"),
        ("tariffs.json", [TARIFF, TARIFF | {"currency": "EURO"}], "entry 2: no currency 'EURO'"),
        ("tariffs.json", [TARIFF, TARIFF | {"id": ""}], "entry 2: a tariff has no id"),
        (
            "tariffs.json",
            [TARIFF, TARIFF | {"currency": "USD"}],
            "entry 2: tariff 't' from 2026-01-01T00:00:00Z is given",
        ),
        ("accounts.json", "[{}]", "entry 1: is neither"),
        ("accounts.json", [ACCOUNT | {"colour": "red"}], "entry 1: account: colour: "),
        ("accounts.json", "[" * 100_000, "cannot be read"),
        ("accounts.json", "no JSON", "line 1 column 1"),
    ],
)
def test_a_fault_is_named_with_its_file_and_place(tmp_path: Path, name: str, content: Any, fault: str) -> None:
    file = file_of(tmp_path, name, content)
    with pytest.raises(ReferenceFileError) as refused:
        read_reference([file])
    assert any(one.startswith(f"{file}: ") and fault in one for one in refused.value.faults), refused.value
    assert str(refused.value).startswith("nothing was published:\n")


def test_all_faults_of_all_files_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    files = [file_of(tmp_path, "a.json", [{}, {}]), tmp_path / "empty", tmp_path / "absent.json"]
    with pytest.raises(ReferenceFileError) as refused:
        read_reference(files)
    assert [fault.split(": ")[0] for fault in refused.value.faults] == [str(files[at]) for at in (0, 0, 1, 2)]


KAZE = ACCOUNT | {"id": "kaze", "vehicles": [{"device": "v1", "region": "eu"}]}
ACME = ACCOUNT | {"vehicles": [{"device": "v0", "region": "eu"}, {"device": "v1", "region": "us"}]}


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([TARIFF, ACME, KAZE], "entry 3: vehicle 'v1' of account 'kaze' is also one of 'acme' (FILE: entry 2); both "),
        (
            [ACCOUNT | {"currency": "JPY"}, TARIFF],
            "entry 1: account 'acme' pays in JPY, and its tariff 't' is in EUR (",
        ),
        (
            [ACCOUNT, TARIFF, TARIFF | {"currency": "USD", "effective_from": "2027-01-01T00:00:00Z"}],
            "entry 1: account 'acme' pays in EUR, and its tariff 't' is in USD (FILE: entry 3)",
        ),
        ([ACCOUNT | {"tariff": "x"}, TARIFF], "entry 1: account 'acme' has tariff 'x', which is not in these files; "),
        (
            [TARIFF, TARIFF | {"effective_from": "2026-01-01T01:00:00+01:00", "currency": "USD"}],
            "entry 2: tariff 't' from 2026-01-01T01:00:00+01:00 is given twice, with two contents",
        ),
    ],
)
def test_what_versions_say_against_each_other_is_named_with_both_places(
    tmp_path: Path, entries: list[dict[str, Any]], fault: str
) -> None:
    file = file_of(tmp_path, "all.json", entries)
    with pytest.raises(ReferenceFileError) as refused:
        read_reference([file])
    (said,) = refused.value.faults
    assert said.startswith(f"{file}: {fault.replace('FILE', str(file))}")


def test_an_account_alone_is_published_with_a_warning_that_its_tariff_is_needed(tmp_path: Path) -> None:
    alone = read_reference([file_of(tmp_path, "accounts.json", [ACCOUNT])])
    assert warnings(alone) == [
        "account 'acme' has tariff 't', which is not in these files; it must be published too",
    ]
    assert not warnings(read_reference([file_of(tmp_path, "both.json", [ACCOUNT, TARIFF])]))


def test_a_folder_stands_for_the_files_that_it_has_and_a_version_given_twice_is_one(tmp_path: Path) -> None:
    fences = file_of(tmp_path, "fences.geojson", FENCE)
    both = file_of(tmp_path, "both.json", [TARIFF, ACCOUNT])
    found = read_reference([tmp_path, fences, both, both])
    assert [(one.kind, one.key) for one in found] == [
        ("fence", "a@"),
        ("tariff", "t@2026-01-01T00:00:00Z"),
        ("account", "acme@"),
    ]


def test_what_the_simulator_writes_can_be_published(tmp_path: Path) -> None:
    write_folder(tmp_path, generated_scenario(seed=7, vehicles=4, regions=("eu", "us")))
    assert {one.kind for one in read_reference([tmp_path])} == {"fence", "tariff", "account"}


def _row(kind: str, body: dict[str, Any], minute: int) -> dict[str, Any]:
    at = datetime(2026, 1, 5, minute=minute, tzinfo=UTC)
    return {"kind": kind, "id": body["id"], "body": json.dumps(body), "published_at": at, "place": None}


class Cluster:
    """A Pulsar cluster that keeps what is sent, or takes nothing."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.sent: list[tuple[str, bytes, str]] = []

    def create_producer(self, topic: str) -> Cluster:
        if not self.answers:
            raise ConnectError
        self._topic = topic
        return self

    def send(self, content: bytes, partition_key: str) -> None:
        self.sent.append((self._topic, content, partition_key))

    def close(self) -> None:
        pass


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    known = {"pulsar://hq:6650": Cluster(answers=False), "pulsar://dr:6650": Cluster(answers=True)}
    monkeypatch.setattr(reference_files, "open_pulsar_client", lambda url, *_, **__: known[url])
    return known


def test_the_first_cluster_that_answers_takes_all(clusters: dict[str, Cluster], tmp_path: Path) -> None:
    versions = read_reference([file_of(tmp_path, "both.json", [TARIFF, ACCOUNT])])
    assert publish(list(clusters), versions) == 2
    assert [key for _, _, key in clusters["pulsar://dr:6650"].sent] == ["t@2026-01-01T00:00:00Z", "acme@"]
    with pytest.raises(ReferenceNotPublished, match="pulsar://hq:6650"):
        publish(["pulsar://hq:6650"], versions)


def test_the_command_publishes_all_or_nothing_and_shows_what_the_table_has(
    clusters: dict[str, Cluster], tmp_path: Path
) -> None:
    config = file_of(
        tmp_path,
        "cloud.toml",
        f'lake = "{tmp_path}/lake"\ncheckpoints = "{tmp_path}/checkpoints"\n'
        + "".join(
            f'[[clusters]]\nname = "{url[9:11]}"\nservice_url = "{url}"\nadmin_url = "http://x"\n' for url in clusters
        ),
    )

    def run(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, ["reference", *words, "--config", str(config)])
        return done.exit_code, done.stdout, done.stderr

    good, bad = file_of(tmp_path, "both.json", [TARIFF, ACCOUNT]), file_of(tmp_path, "bad.json", [{}])
    code, _, said = run("publish", str(good), str(bad))
    assert (code, clusters["pulsar://dr:6650"].sent) == (1, [])
    assert f"{bad}: entry 1: " in said
    assert run("publish", str(good))[:2] == (0, "published: 1 account, 1 tariff\n")
    assert run("publish", str(good), "--json")[0] == 0

    code, _, said = run("show")
    assert code == 1
    assert "reference" in said
    lake = Lake(tmp_path / "lake")
    lake.create()
    rows = [("tariff", TARIFF), ("tariff", TARIFF | {"currency": "NO"}), ("account", ACCOUNT)]
    lake.append("reference", [_row(kind, body, minute) for minute, (kind, body) in enumerate(rows)])
    code, shown, _ = run("show", "--json")
    assert code == 0
    assert [(row["kind"], row["id"], row["effective_from"], row["problem"][:11]) for row in json.loads(shown)] == [
        ("account", "acme", "", ""),
        ("tariff", "t", "2026-01-01T00:00:00Z", "no currency"),
    ]
    assert {row["published_at"] for row in json.loads(shown)} == {"2026-01-05T00:01:00Z", "2026-01-05T00:02:00Z"}
    assert "effective from" in run("show")[1]
