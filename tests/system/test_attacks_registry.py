"""A hostile tenant holds its own registry topic with a fencing producer: every other tenant goes on as before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from typer.testing import CliRunner

from deploy.local import LocalStack
from tests.system.access_region import is_refused_at
from tests.system.test_stack_access import agent_file, certificate_of, ended, start_enrol
from tests.waiting import PATIENCE, wait_until
from waybill.identity.device_cli import app
from waybill.identity.registry_messages import devices_topic
from waybill.pulsar.pulsar_client import open_pulsar_client

pytestmark = pytest.mark.system
HOSTILE, OTHER = "canary", "fleet"
ROLE, HELD = f"fleet-operator-{HOSTILE}", devices_topic(HOSTILE)
BECAUSE = ("--reason", "as a test")
RUNBOOK = Path(__file__).parents[2] / "docs/runbooks/access.md"
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def device(stack: LocalStack) -> Command:
    """`waybill device` with the access of who runs the installation."""

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(arguments), env={"WAYBILL_STACK": str(stack.folder)})
        return done.exit_code, done.output

    return run


def expected(device: Command, token: Path, name: str) -> Path:
    code, said = device("expect", name, "--region", "eu", "--token-file", str(token), *BECAUSE, "--wait", "30")
    assert code == 0, said
    return token


def fence(client: Any, topic: str) -> Any:
    return client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)


@pytest.fixture(scope="module")
def clients(stack: LocalStack) -> Iterator[dict[str, Any]]:
    """The hostile tenant's own token, at every cluster."""
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(
                closing(open_pulsar_client(server.service_url, stack.access(ROLE), timeout_s=10))
            )
            for name, server in stack.pulsar.items()
        }


@pytest.fixture(scope="module")
def waiting_device(stack: LocalStack, device: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings of a device of the hostile tenant that was made known before."""
    folder = tmp_path_factory.mktemp("hostile")
    token = expected(device, folder / "token", f"{HOSTILE}/waits")
    config = agent_file(stack, folder / "agent", "waits", token)
    config.write_text(config.read_text().replace(f'tenant = "{OTHER}"', f'tenant = "{HOSTILE}"'))
    return config


@pytest.fixture(scope="module")
def attack(clients: dict[str, Any], waiting_device: Path) -> list[Any]:
    """Exclusive producers, at every cluster at once."""
    return [fence(client, HELD) for client in clients.values()]


def test_a_tenants_token_opens_no_producer_on_what_is_not_its_own(attack: list[Any], clients: dict[str, Any]) -> None:
    assert all(one.is_connected() for one in attack), "its own topic is its own"
    for topic in (
        devices_topic(OTHER),
        f"persistent://{HOSTILE}/registry/another",
        "persistent://fleet/reference/devices",
        "persistent://fleet/reference/revocation-lists",
        "persistent://fleet/access/confirmations",
    ):
        for client in clients.values():
            with pytest.raises(pulsar.AuthorizationError):
                fence(client, topic)


@pytest.mark.nightly
def test_while_a_tenant_holds_its_topic_a_device_of_another_is_enrolled_and_revoked_as_usual(
    attack: list[Any], stack: LocalStack, device: Command, tmp_path: Path, waiting_device: Path
) -> None:
    # A device of the hostile tenant asks first: what waits for its topic keeps nobody else waiting.
    hostile = start_enrol(waiting_device)
    config = agent_file(stack, tmp_path / "agent", "spared", expected(device, tmp_path / "token", f"{OTHER}/spared"))
    code, said = ended(start_enrol(config))
    assert code == 0, said
    context, port = certificate_of(config, stack), stack.brokers["eu"].port
    assert not is_refused_at(port, context)
    began_s = time.monotonic()
    code, said = device("revoke", f"{OTHER}/spared", *BECAUSE, "--wait", "30")
    assert (code, "confirmed: eu, us" in said) == (0, True), said
    wait_until(lambda: is_refused_at(port, context), 10)
    assert time.monotonic() - began_s < 20 * PATIENCE
    code, said = ended(hostile)
    assert code == 1, said


@pytest.mark.nightly
def test_the_topic_that_is_held_is_named_to_who_runs_the_region_and_to_the_tenants_operator(
    attack: list[Any], stack: LocalStack, device: Command
) -> None:
    status = stack.access_daemons["eu"].addresses()["status"]
    metrics = status.replace("/status", "/metrics")
    found = httpx.get(status).json()
    assert found["topics_held"][HELD] > 0
    assert devices_topic(OTHER) not in found["topics_held"]
    counted = re.search(rf'waybill_access_topics_held_total{{topic="{HELD}"}} (\S+)', httpx.get(metrics).text)
    assert counted is not None
    assert float(counted[1]) > 0
    code, said = device("revoke", f"{HOSTILE}/waits", *BECAUSE)
    assert (code, f"another producer has {HELD} for itself alone" in said) == (3, True), said


@pytest.mark.nightly
def test_the_runbook_ends_it_and_the_tenants_own_work_goes_on(
    attack: list[Any], stack: LocalStack, waiting_device: Path, tmp_path: Path
) -> None:
    section = RUNBOOK.read_text().partition("## A hostile tenant")[2].partition("\n## ")[0]
    commands = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert commands is not None
    for server in stack.pulsar.values():
        text = commands[1].replace("https://pulsar.eu.example:8443", server.admin_url).replace("acme", HOSTILE)
        text = text.replace("pki/pulsar-authority/root.pem", str(stack.access().tls_ca)).replace(
            "/var/lib/fleet-tokens/tokens/operator.token", str(stack.access().token_file)
        )
        done = subprocess.run(["bash", "-euc", text], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "ExclusiveWithFencing" in done.stdout, "it names the producer"
    code, said = ended(start_enrol(waiting_device))
    assert code == 0, said
    command = [sys.executable, "-m", "waybill", "topology", "apply"]
    environment = os.environ | {"WAYBILL_STACK": str(stack.folder)}
    assert "`waybill topology apply`" in section
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
