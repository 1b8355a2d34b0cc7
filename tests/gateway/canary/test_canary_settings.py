"""The settings of a canary, of its agent, and what is published for it."""

import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.contracts import is_canary
from cloud_jobs.reference.files import read_reference
from gateway.canary import service as topic_observers
from gateway.canary.checks import problems, warnings
from gateway.canary.cli import app
from gateway.canary.reference import contracts_text, fence_text, write_reference
from gateway.canary.service import TopicReaders
from gateway.errors import CanaryError
from tests.gateway.canary.canaries import CANARY_FILE, canary_settings
from tests.tokens import token_file
from waybill.settings import SettingsError


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"centre": None}, "centre: is needed to watch centre, alert"),
        ({"lake": None}, "lake: is needed to watch table, usage, rated"),
        ({"script": {"latitude": 0, "longitude": 0, "period_s": 35}}, "period_s"),
        ({"hops": []}, "hops"),
        # its account, its topics and its alerts are known by the tenant that is reserved
        ({"tenant": "acme"}, "tenant"),
        ({"device": "Canary"}, "device"),
        ({"object_store": {"endpoint": "http://127.0.0.1:1"}}, "object_store is for a lake at s3://"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, more: dict[str, Any], fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        canary_settings(tmp_path, **more)


def test_the_fence_and_the_contracts_can_be_published(tmp_path: Path) -> None:
    settings = canary_settings(tmp_path)
    (tmp_path / "fences.geojson").write_text(fence_text(settings))
    (tmp_path / "contracts.toml").write_text(contracts_text(settings, datetime(2026, 3, 1, tzinfo=UTC)))
    assert len(read_reference([tmp_path / "fences.geojson", tmp_path / "contracts.toml"])) == 4


@pytest.mark.parametrize(("ends_in_s", "said"), [(-1.0, "ended at"), (3600.0, "was not renewed")])
def test_a_token_that_ended_or_ends_soon_is_a_warning_and_no_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_in_s: float, said: str
) -> None:
    access = {"token_file": str(token_file(tmp_path, "canary-eu", ends_in_s=ends_in_s))}
    made = canary_settings(tmp_path, regional={"service_url": "pulsar://127.0.0.1:6650", "access": access})
    (found,) = warnings(made, time.time())
    assert found.startswith("regional.access.token_file: token of canary-eu")
    assert said in found

    def opened(*_: object, **__: object) -> None:
        raise pulsar.Timeout("TimeOut")

    monkeypatch.setattr(topic_observers, "open_pulsar_client", opened)
    assert made.regional is not None
    with pytest.raises(CanaryError, match="ended at" if ends_in_s < 0 else "TimeOut"):
        [*TopicReaders(made.regional, made.batches_topic).read()]


def test_what_is_named_and_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    there = canary_settings(tmp_path, lake=str(tmp_path / "lake"))
    assert problems(there) == []
    enrolment = {"host": "broker.eu.example", "ca": str(tmp_path / "ca.pem"), "token_file": str(tmp_path / "token")}
    secured = {"region": "eu", "host": "127.0.0.1", "tls": {"ca": str(tmp_path / "ca.pem")}}
    absent = canary_settings(
        tmp_path, lake=str(tmp_path / "nowhere"), agent={"uplinks": [secured], "enrolment": enrolment}
    )
    found = "\n".join(problems(absent))
    assert f"agent.enrolment.ca: {tmp_path}/ca.pem cannot be read" in found
    assert f"agent.enrolment.token_file: {tmp_path}/token cannot be read" in found
    assert f"lake: there is no folder {tmp_path / 'nowhere'}" in found


def test_two_canaries_of_a_region_have_each_its_own_fence_contracts_and_numbers(tmp_path: Path) -> None:
    since = datetime(2026, 3, 1, tzinfo=UTC)
    names = ["canary-eu", "canary-eu-2", "canary-eu.3", "probe_one", "c" * 54 + "-1", "c" * 54 + "-2"]
    found: dict[str, set[str]] = {}
    for at, device in enumerate(names):
        one, folder = canary_settings(tmp_path, device=device), tmp_path / str(at)
        write_reference(folder, fence_text(one), contracts_text(one, since), replace=False)
        versions = read_reference([folder])
        assert {version.kind for version in versions} == {"fence", "tariff", "legal_entity", "account"}
        assert is_canary(one.name)
        for version in versions:
            found.setdefault(version.kind, set()).add(version.id)
        found.setdefault("numbers", set()).add(
            tomllib.loads(contracts_text(one, since))["legal_entity"][0]["number_prefix"]
        )
    assert {kind: len(ids) for kind, ids in found.items()} == dict.fromkeys(found, len(names))
    assert canary_settings(tmp_path).name == "canary-eu", "one that is named as its region keeps its account"


def test_the_way_out_that_is_named_for_plain_text_is_one_of_this_file(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    uplinks = [{"region": "eu", "host": "broker.eu.example"}, {"region": "us", "host": "broker.us.example"}]
    plain = problems(canary_settings(tmp_path, agent={"uplinks": uplinks}))
    assert [one.split(":")[0] for one in plain] == ["agent.uplinks.0.tls", "agent.uplinks.1.tls"]
    assert all("set ca, or say insecure = true in [agent]" in one for one in plain)
    assert problems(canary_settings(tmp_path, agent={"uplinks": uplinks, "insecure": True})) == []


def run_setup(folder: Path, *options: str) -> tuple[int, str]:
    config = folder / "canary.toml"
    config.write_text(CANARY_FILE)
    done = CliRunner().invoke(app, ["setup", "--config", str(config), "--out", str(folder / "out"), *options])
    return done.exit_code, done.output


def test_what_it_writes_can_be_published(tmp_path: Path) -> None:
    code, said = run_setup(tmp_path)
    assert (code, f"written: {tmp_path / 'out' / 'fences.geojson'}" in said) == (0, True), said
    assert len(read_reference([tmp_path / "out"])) == 4


def test_files_that_are_there_are_named_and_stay_as_they_are(tmp_path: Path) -> None:
    assert run_setup(tmp_path)[0] == 0
    (tmp_path / "out" / "fences.geojson").unlink()
    kept = tmp_path / "out" / "contracts.toml"
    kept.write_text("# by hand\n")
    code, said = run_setup(tmp_path)
    assert (code, str(kept) in said, "--replace" in said) == (1, True, True), said
    # neither of both: what is published together was written together
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["contracts.toml"]
    assert kept.read_text() == "# by hand\n"
    assert run_setup(tmp_path, "--replace")[0] == 0
    assert len(read_reference([tmp_path / "out"])) == 4
