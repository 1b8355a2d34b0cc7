"""The topology commands say how they ended, find the stack's file, and make nothing up."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from geo.replication import Applied, Change
from geo.replication.cli import _exit_status, _print_applied, app
from tests.geo.replication.brokers import Answer, FakeBroker

NOWHERE = """
centre = "hq"
[clusters.eu.address]
service_url = "pulsar://127.0.0.1:9"
admin_url = "http://127.0.0.1:9"
[clusters.hq.address]
service_url = "pulsar://127.0.0.1:9"
admin_url = "http://127.0.0.1:9"
[regions.eu]
cluster = "eu"
[tenants.fleet]
[namespaces."fleet/a"]
clusters = "all"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "topology.toml").write_text(NOWHERE)
    return str(tmp_path / "topology.toml")


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_where_no_cluster_answers_the_exit_status_is_that_of_an_error(command: str, file: str) -> None:
    done = CliRunner().invoke(app, [command, "--topology", file])
    assert done.exit_code == 1
    assert "did not answer at http://127.0.0.1:9" in done.output


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_an_address_that_answers_nothing_with_200_is_neither_an_empty_cluster_nor_a_change_made(
    command: str, file: str, broker: Callable[[str], FakeBroker]
) -> None:
    balancer = {name: broker(name) for name in ("eu", "hq")}
    text = NOWHERE
    for one in balancer.values():
        one.first = [(200, {"content-type": "text/html"}, b"")] * 500
        text = text.replace('admin_url = "http://127.0.0.1:9"', f'admin_url = "{one.url}"', 1)
    Path(file).write_text(text)
    done = CliRunner().invoke(app, [command, "--topology", file])
    assert done.exit_code == 1
    assert "not by Pulsar" in done.output
    assert "create" not in done.output
    assert {method for one in balancer.values() for method, *_ in one.asked} == {"GET"}


def test_what_is_held_back_is_a_difference_and_never_nothing_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    shorter = Change(
        cluster="hq", action="update", kind="policy", name="fleet/a", policy="retention", deletes_data=True
    )
    _print_applied(Applied(changed=(), held_back=(shorter,)))
    assert capsys.readouterr().out.startswith("held back, it would delete data: hq: update policy fleet/a retention")
    assert _exit_status({}, [shorter]) == 2
    assert _exit_status({"eu": "silent"}, [shorter]) == 1
    _print_applied(Applied(changed=(), held_back=()))
    assert capsys.readouterr().out == "nothing to change\n"
    assert _exit_status({}, []) == 0


def verified(file: str, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", "--topology", file, "--timeout", "0.1", *words])
    return done.exit_code, " ".join(done.output.split())


def test_verify_knows_nothing_where_no_cluster_answers(file: str) -> None:
    status, said = verified(file)
    assert status == 3
    assert "0 of 2 links good; 0 of 2 clusters answered" in said
    assert "unknown, eu was not seen: cluster eu did not answer at http://127.0.0.1:9" in said
    status, said = verified(file, "--json")
    assert status == 3
    assert '"unreachable": { "eu": "cluster eu did not answer' in said


def lone(text: str, one: FakeBroker) -> str:
    """The topology without links, with the next cluster at this broker."""
    empty: Answer = (200, {}, b"[]")
    one.answers["/admin/v2/persistent/fleet/a"] = one.answers["/admin/v2/persistent/fleet/a/partitioned"] = empty
    text = text.replace('clusters = "all"', 'clusters = ["hq"]')
    return text.replace('admin_url = "http://127.0.0.1:9"', f'admin_url = "{one.url}"', 1)


def test_verify_names_a_cluster_whose_brokers_ask_nobody_for_the_rights_that_the_topology_names(
    file: str, broker: Callable[[str], FakeBroker]
) -> None:
    text = NOWHERE
    for name in ("eu", "hq"):
        text = lone(text, broker(name))
    Path(file).write_text(text)
    assert verified(file)[0] == 0, "no role is named: rights stay as they are"
    Path(file).write_text(text + "[roles.operator]\nsuperuser = true\n")
    status, said = verified(file)
    assert status == 1
    for name in ("eu", "hq"):
        assert f"{name}: its brokers do not enforce rights (authorizationEnabled is not true)" in said
    status, said = verified(file, "--json")
    assert status == 1
    assert '"unprotected": [ "eu: its brokers do not enforce rights' in said


TOPOLOGY = """
centre = "eu"
replication_role = "replication-{cluster}"
[clusters.eu.address]
service_url = "%s"
admin_url = "https://pulsar.eu.example:8443"
[clusters.us]
[tenants.acme]
[regions.eu]
cluster = "eu"
[roles.operator]
superuser = true
"""
SECURED = "pulsar+ssl://pulsar.eu.example:6651"
OPTIONS = ["--issuer", "https://keys.example", "--tls", "/etc/tls", "--token-file", "/etc/token"]


@pytest.mark.parametrize(
    ("url", "words", "said"),
    [
        (SECURED, ["us", *OPTIONS], "cluster us has no address"),
        (SECURED, ["xx", *OPTIONS], "cluster xx has no address"),
        ("pulsar://pulsar.eu.example:6650", ["eu", *OPTIONS], "must be pulsar+ssl:// and https://"),
        (SECURED, ["eu", *OPTIONS[:3], "tls", *OPTIONS[4:]], "whole paths"),
        (SECURED, ["eu", "--issuer", "http://keys.example", *OPTIONS[2:]], "an https:// address"),
    ],
)
def test_what_would_leave_a_broker_without_tls_or_files_is_refused(
    tmp_path: Path, url: str, words: list[str], said: str
) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(TOPOLOGY % url)
    ran = CliRunner().invoke(app, ["broker-conf", *words, "--topology", str(file)])
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert said in ran.stderr


def test_superusers_and_the_brokers_own_role_may_do_everything(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(TOPOLOGY % SECURED)
    ran = CliRunner().invoke(app, ["broker-conf", "eu", *OPTIONS, "--topology", str(file)])
    assert ran.exit_code == 0
    assert {"superUserRoles=operator,replication-eu", "brokerServicePortTls=6651", "webServicePort="} <= set(
        ran.stdout.splitlines()
    )
