"""Settings of the jobs that contradict each other are refused by name."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from cloud_jobs.__main__ import app
from cloud_jobs.commands import load_settings
from cloud_jobs.config import MAX_GAP_S, CloudSettings

CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}
FACTS = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]}


@pytest.mark.parametrize("gap_s", [MAX_GAP_S + 1, float("inf")])
def test_a_gap_of_more_than_a_day_is_refused(gap_s: float) -> None:
    settings = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]}
    assert CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": MAX_GAP_S}}).tracks.max_gap_s == MAX_GAP_S
    with pytest.raises(ValidationError, match="max_gap_s"):
        CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": gap_s}})


LEAST = """lake = "lake"
checkpoints = "checkpoints"
[[clusters]]
name = "hq"
service_url = "pulsar://hq:6650"
admin_url = "http://hq:8080"
"""


@pytest.mark.parametrize("command", ["ingest", "usage", "geofence", "proximity", "check-config"])
def test_a_file_of_settings_that_is_missing_or_wrong_ends_every_command_with_78(tmp_path: Path, command: str) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(LEAST + 'colour = "red"\n')
    for file, said in ((tmp_path / "absent.toml", "cannot be read"), (wrong, "clusters.0.colour: no such setting")):
        done = CliRunner().invoke(app, [*command.split(), "--config", str(file)])
        assert (done.exit_code, done.stdout) == (78, "")
        assert done.stderr.startswith(f"{file}: ")
        assert said in done.stderr


def test_files_that_the_settings_name_are_looked_at_and_named(tmp_path: Path) -> None:
    file = tmp_path / "cloud.toml"

    def checked(more: str) -> tuple[int, list[str]]:
        file.write_text(LEAST + more)
        done = CliRunner().invoke(app, ["check-config", "-c", str(file)])
        return done.exit_code, done.stderr.splitlines()

    token = tmp_path / "token"
    code, said = checked(f'[access]\ntoken_file = "{token}"\ntls_ca = "{tmp_path}/ca.pem"\n')
    assert code == 78
    assert [line.split(": ")[:2] for line in said] == [[str(file), "access.token_file"], [str(file), "access.tls_ca"]]
    assert all(str(tmp_path) in line.split(": ", 2)[2] for line in said)
    token.write_text("abc")
    assert checked(f'[access]\ntoken_file = "{token}"\n') == (0, [f"{file}: valid. Lake {tmp_path}/lake, clusters hq"])
    code, said = checked(f'[ingest.options]\ntlsCa = "{token}"\n')
    assert (code, said[0].startswith(f"{file}: ingest.options: certificates cannot be loaded: ")) == (78, True)
    code, said = checked('[ingest.options]\ntlsC = "x"\n')
    assert (code, said) == (78, [f"{file}: ingest.options: unknown option 'tlsC': did you mean tlsCa?"])


def test_folders_are_those_beside_the_file_wherever_the_command_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = '[[clusters]]\nname = "hq"\nservice_url = "pulsar://hq:1"\nadmin_url = "http://hq:2"\n'
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "cloud.toml").write_text(f'lake = "lake"\ncheckpoints = "notes"\n{cluster}')
    (tmp_path / "b.toml").write_text(f'lake = "s3://lake/a"\ncheckpoints = "/notes"\n{cluster}')
    monkeypatch.chdir(tmp_path)
    found = load_settings(Path("a/cloud.toml"))
    assert (found.lake, found.checkpoints) == ("a/lake", Path("a/notes"))
    other = load_settings(Path("b.toml"))
    assert (other.lake, other.checkpoints) == ("s3://lake/a", Path("/notes"))


BATCHES = ["persistent://{tenant}/telemetry-north/batches", "persistent://beta/telemetry-south.2/batches"]


def test_the_topics_of_alerts_are_those_of_the_regions_whose_batches_are_read() -> None:
    made = CloudSettings.model_validate(FACTS | {"tenants": ["acme", "beta"], "ingest": {"topics": BATCHES}})
    assert made.alert_topics == {
        "persistent://beta/alerts-south.2/alerts": None,
        "persistent://acme/alerts-north/alerts": "acme",
        "persistent://beta/alerts-north/alerts": "beta",
    }
    named = {"verdicts": {"alerts": ["persistent://{tenant}/x/y"]}}
    made = CloudSettings.model_validate(FACTS | named | {"ingest": {"topics": [*BATCHES, "persistent://a/b/c"]}})
    assert (list(made.alert_topics), made.regions_without_alerts) == (["persistent://fleet/x/y"], [])
