"""The stack as it is by default: a device is enrolled with its token, and locked out of both regions."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from cloud_jobs.config import CloudSettings
from deploy.demo.processes import open_session
from deploy.local import LocalStack
from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificates import certificate_folder
from gateway.alerts.config import AlertSettings
from gateway.alerts.config import problems as alert_problems
from gateway.canary.checks import problems as canary_problems
from gateway.canary.config import CanarySettings
from gateway.cli import problems
from gateway.config import GatewaySettings
from gateway.webhooks.config import NotifierSettings
from gateway.webhooks.service import problems as notifier_problems
from tests.system.access_region import has_ended, is_refused_at
from tests.waiting import PATIENCE, wait_until
from waybill.identity.device_cli import app
from waybill.identity.operator_settings import OPERATOR_SETTINGS, read_operator_settings
from waybill.identity.registry_session import RegistrySession
from waybill.settings import load

pytestmark = pytest.mark.system
TENANT = "fleet"
BECAUSE = ("--reason", "as a test")
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def device(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`waybill device`, which finds the stack by itself."""
    monkeypatch.setenv("WAYBILL_STACK", str(stack.folder))

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(arguments))
        return done.exit_code, done.output

    return run


def agent_file(stack: LocalStack, folder: Path, name: str, token: Path, region: str = "eu") -> Path:
    folder.mkdir(exist_ok=True)
    ca = stack.folder / "access/authority.pem"
    config = folder / "agent.toml"
    config.write_text(
        f'[device]\nid = "{name}"\ntenant = "{TENANT}"\n[buffer]\npath = "{folder}/buffer"\n[status]\nport = 0\n'
        f'[enrolment]\nhost = "127.0.0.1"\nport = {stack.enrolment[region].port}\nca = "{ca}"\n'
        f'token_file = "{token}"\nanswer_timeout_s = 15.0\n'
        f'[[uplinks]]\nregion = "{region}"\nhost = "127.0.0.1"\nport = {stack.brokers[region].port}\n'
        f'[uplinks.tls]\nca = "{ca}"\n'
    )
    return config


def start_enrol(config: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "edge_agent", "enrol", "--config", str(config)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(enrolling: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = enrolling.communicate(timeout=90 * PATIENCE)
    return enrolling.returncode, said


def certificate_of(config: Path, stack: LocalStack) -> ssl.SSLContext:
    folder = certificate_folder(load(AgentSettings, config))
    held = folder.newest() if folder else None
    assert held is not None, "no certificate was given"
    context = ssl.create_default_context(cafile=str(stack.folder / "access/authority.pem"))
    context.load_cert_chain(str(held.path))
    return context


def expected(device: Command, tmp_path: Path, name: str, region: str = "eu") -> Path:
    token = tmp_path / f"{name}.token"
    arguments = ("--region", region, "--token-file", str(token), *BECAUSE, "--wait", "30")
    code, said = device("expect", f"{TENANT}/{name}", *arguments)
    assert code == 0, said
    return token


def state_of(device: Command, name: str) -> tuple[str, int]:
    """The state of a device, and how many entries it had."""
    shown = json.loads(device("show", f"{TENANT}/{name}", "--json")[1])
    return shown["state"], shown["version"]


@pytest.mark.parametrize("region", ["eu", "us"])
def test_a_device_enrols_by_its_token_and_is_locked_out_of_both_regions(
    stack: LocalStack, device: Command, tmp_path: Path, region: str
) -> None:
    name = f"stolen-{region}"
    config = agent_file(stack, tmp_path / "agent", name, expected(device, tmp_path, name, region), region)
    code, said = ended(start_enrol(config))
    assert code == 0, said
    context, ports = certificate_of(config, stack), [broker.port for broker in stack.brokers.values()]
    for port in ports:
        open_session(port, context, 10).close()
    # One session at a time: a device has one name, and two regions.
    sessions = [open_session(port, context, 10) for port in ports]
    began = time.monotonic()
    code, said = device("revoke", f"{TENANT}/{name}", *BECAUSE, "--wait", "30")
    assert (code, "confirmed: eu, us" in said) == (0, True), said
    assert all(has_ended(session) for session in sessions)
    assert time.monotonic() - began < 20 * PATIENCE  # of a busy machine: the second is measured by `make bench-gateway`
    wait_until(lambda: all(is_refused_at(port, context) for port in ports), 10)
    # the revocation is published before the registry is read, and then with the certificates that are known
    assert state_of(device, name) == ("revoked", 3)


def test_a_daemon_that_is_killed_between_the_entry_and_the_answer_enrols_nobody_twice(
    stack: LocalStack, device: Command, tmp_path: Path
) -> None:
    config = agent_file(stack, tmp_path / "agent", "torn", expected(device, tmp_path, "torn"))
    daemon = stack.access_daemons["eu"]
    enrolling = start_enrol(config)
    with RegistrySession(read_operator_settings(stack.folder / OPERATOR_SETTINGS)) as registry:
        # As soon as anybody can know of the entry; the answer may be on its way, or not.
        wait_until(lambda: (found := registry.get(f"{TENANT}/torn")) is not None and bool(found.certificates), 60)
        daemon.kill()
    daemon.start()
    daemon.wait()
    code, said = ended(enrolling)
    if code != 0:
        code, said = ended(start_enrol(config))
    assert code == 0, said
    assert state_of(device, "torn") == ("active", 2)
    assert not is_refused_at(stack.brokers["eu"].port, certificate_of(config, stack))


def test_an_operator_sees_whom_the_brokers_refused(stack: LocalStack, device: Command, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(stack.folder / "access/authority.pem"))
    assert is_refused_at(stack.brokers["eu"].port, context)
    wrong = tmp_path / "wrong.token"
    wrong.write_text(f"token-{'A' * 43}")
    code, _ = ended(start_enrol(agent_file(stack, tmp_path / "agent", "nobody", wrong)))
    assert code == 1
    url = stack.access_daemons["eu"].addresses()["status"]

    def refused() -> bool:
        counted = httpx.get(url).json()["connections_refused"]
        return bool(counted["devices"].get("no-certificate") and counted["claims"].get("not-authorised"))

    wait_until(refused, 10, said=lambda: httpx.get(url).text)


def test_the_stack_has_settings_of_a_notifier_and_for_each_region_of_an_alert_process_and_a_canary(
    stack: LocalStack,
) -> None:
    for name, role in (("cloud", "jobs"), ("publisher", "publisher")):
        centre = load(CloudSettings, stack.folder / f"{name}.toml")
        assert centre.access.token_file == stack.folder / f"access/tokens/{role}.token"
        assert (centre.reference.operators, "fleet" in centre.tenants) == (stack.folder / "operators.toml", True)
    for region in ("eu", "us"):
        alerts = load(AlertSettings, stack.folder / f"alerts-{region}.toml")
        assert (alert_problems(alerts), alerts.insecure, alerts.region) == ([], False, region)
        canary = load(CanarySettings, stack.folder / f"canary-{region}.toml")
        assert canary.region == region
        assert canary.agent.enrolment is not None
        [missing] = canary_problems(canary)
        assert str(canary.agent.enrolment.token_file) in missing, "its token comes with the first command"
        assert (canary.agent.uplinks[0].port, canary.agent.enrolment.port) == (
            stack.links[region].port,
            stack.enrolment[region].port,
        )
    notifier = load(NotifierSettings, stack.folder / "notifier.toml")
    assert (notifier_problems(notifier), notifier.insecure) == ([], False)
    assert (notifier.regions, "canary" in notifier.tenants) == (("eu", "us"), False)
    ports = [load(AlertSettings, stack.folder / f"alerts-{region}.toml").status.port for region in ("eu", "us")]
    ports += [load(CanarySettings, stack.folder / f"canary-{region}.toml").status.port for region in ("eu", "us")]
    assert len({*ports, notifier.status.port}) == 5


def test_the_stack_has_settings_of_a_gateway_and_of_an_agent_for_each_region(stack: LocalStack) -> None:
    for region in ("eu", "us"):
        settings = load(GatewaySettings, stack.folder / f"gateway-{region}.toml")
        assert (settings.name, problems(settings), settings.insecure) == (f"{region}-1", [], False)
        agent = load(AgentSettings, stack.folder / f"agent-{region}.toml")
        assert agent.enrolment is not None
        assert (agent.uplinks[0].port, agent.enrolment.port) == (
            stack.links[region].port,
            stack.enrolment[region].port,
        ), "what `waybill link` cuts is cut for the vehicle of the file too"
