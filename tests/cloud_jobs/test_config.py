"""Settings of the jobs that contradict each other are refused by name."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from cloud_jobs.__main__ import app
from cloud_jobs.command_settings import load_checked_settings, load_settings
from cloud_jobs.config import MAX_GAP_S, CloudSettings
from cloud_jobs.pulsar_source.options import PulsarOptions
from tests.tokens import token_file

CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}
FACTS = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]}


@pytest.mark.parametrize("gap_s", [MAX_GAP_S + 1, float("inf")])
def test_a_gap_of_more_than_a_day_is_refused(gap_s: float) -> None:
    settings = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]}
    assert CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": MAX_GAP_S}}).tracks.max_gap_s == MAX_GAP_S
    with pytest.raises(ValidationError, match="max_gap_s"):
        CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": gap_s}})


def test_who_we_are_holds_for_what_is_read_too_and_is_shown_by_no_text() -> None:
    access = {"token": "s3cret", "tls_ca": "ca.pem", "tls_validate_hostname": False}
    settings = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER], "access": access}
    made = CloudSettings.model_validate(settings)
    options = PulsarOptions.parse(made.source_options | {"topics": "t"})
    assert options.access() == made.access
    assert "s3cret" not in repr(made) + made.model_dump_json()


def test_without_access_the_source_is_given_none() -> None:
    made = CloudSettings.model_validate({"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]})
    assert made.source_options.keys() == {"clusters", "failoverFile"}


LEAST = """lake = "lake"
checkpoints = "checkpoints"
[[clusters]]
name = "hq"
service_url = "pulsar://hq:6650"
admin_url = "http://hq:8080"
"""


def test_several_hosts_of_a_cluster_are_one_cluster_to_the_command(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    hosts = LEAST.replace("hq:6650", "hq1:6650,hq2:6650").replace("hq:8080", "hq1:8080,hq2:8080")
    file.write_text(hosts + "[reference]\nunsigned = true\n")
    done = CliRunner().invoke(app, ["check-config", "--config", str(file)])
    assert done.exit_code == 0, done.output
    file.write_text(hosts.replace("hq2:6650", "pulsar://hq2:6650"))
    done = CliRunner().invoke(app, ["check-config", "--config", str(file)])
    assert (done.exit_code, done.stdout) == (78, "")
    assert done.stderr.startswith(f"{file}: clusters.0.service_url: the scheme stands once")


@pytest.mark.parametrize(
    "command",
    ["ingest", "usage", "geofence", "proximity", "check-config"],
)
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
    assert checked(f'[access]\ntoken_file = "{token}"\n') == (0, [f"{file}: right. Lake {tmp_path}/lake, clusters hq"])
    code, said = checked(f'[ingest.options]\ntlsCa = "{token}"\n')
    assert (code, said[0].startswith(f"{file}: ingest.options: certificates cannot be loaded: ")) == (78, True)
    code, said = checked('[ingest.options]\ntlsC = "x"\n')
    assert (code, said) == (78, [f"{file}: ingest.options: unknown option 'tlsC': did you mean tlsCa?"])


@pytest.mark.parametrize(
    ("ingest", "said"),
    [
        (
            'topics = ["persistent://{tenant}/telemetry-eu/batches-partition-3"]',
            "is one partition of a topic, and all are read together: write persistent://{tenant}/telemetry-eu/batches",
        ),
        ('[ingest.options]\ntopicsPattern = "acme/telemetry/.*"', "options.topicsPattern: the topics are those of"),
        (
            '[ingest.options]\nTOPICS = "acme/telemetry/batches"',
            "options.TOPICS: the topics are those of ingest.topics",
        ),
    ],
)
def test_no_topic_is_read_around_the_check_that_only_its_tenant_is_on_it(
    tmp_path: Path, ingest: str, said: str
) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text(f"{LEAST}[ingest]\n{ingest}\n")
    done = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert done.exit_code == 78
    assert said in done.stderr


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


@pytest.mark.parametrize(
    "topics",
    [
        ["persistent://{tenant}/telemetry-eu/batches"],
        ["{tenant}/telemetry-eu/batches"],
        ["{tenant}/telemetry-eu/batches", "acme/telemetry-eu/batches"],
        ["persistent://acme/telemetry-eu/batches", "persistent://{tenant}/telemetry-eu/batches"],
    ],
)
def test_a_tenants_topic_is_its_own_however_it_is_spelled(topics: list[str]) -> None:
    made = CloudSettings.model_validate(FACTS | {"tenants": ["acme"], "ingest": {"topics": topics}})
    assert made.batch_topics == {"persistent://acme/telemetry-eu/batches": "acme"}


@pytest.mark.parametrize("topic", ["non-persistent://{tenant}/telemetry-eu/batches", "{tenant}/batches", "a//b", ""])
def test_what_is_no_topic_is_refused_where_it_is_set(topic: str) -> None:
    with pytest.raises(ValidationError, match="topics"):
        CloudSettings.model_validate(FACTS | {"ingest": {"topics": [topic]}})


def test_a_standalone_cluster_that_runs_anybody_s_code_is_named(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "cloud.toml"
    spark = '[reference]\nunsigned = true\n[spark]\nmaster = "spark://10.0.0.5:7077"\n'
    file.write_text(LEAST + spark)
    done = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert (done.exit_code, "may run anybody's code" in done.stderr) == (0, True)
    file.write_text(f'{LEAST}{spark}secret_file = "{secret}"\n')
    done = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert (done.exit_code, "spark.secret_file: " in done.stderr) == (78, True)
    secret.touch(0o600)
    secret.write_text("0123456789abcdef")
    done = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert (done.exit_code, "warning" in done.stderr) == (0, False)


def test_a_token_that_has_ended_is_named_by_the_check_and_read_again_by_the_jobs(tmp_path: Path) -> None:
    token, file = token_file(tmp_path, "jobs", ends_in_s=-1), tmp_path / "cloud.toml"
    file.write_text(f'{LEAST}[access]\ntoken_file = "{token}"\n[reference]\nunsigned = true\n')
    done = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert (done.exit_code, f"access.token_file: token of jobs in {token} ended at" in done.stderr) == (78, True)
    assert load_checked_settings(file).access.token_file == token


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


def test_where_no_topic_of_alerts_follows_from_those_of_batches_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text(LEAST + '[ingest]\ntopics = ["persistent://a/b/c"]\n')
    done = CliRunner().invoke(app, ["verdicts", "--config", str(file)])
    assert done.exit_code == 78
    assert "verdicts.alerts: name the topics of alerts: none follows from persistent://a/b/c" in done.stderr
