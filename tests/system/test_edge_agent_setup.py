"""`edge-agent setup` on a scripted terminal, with real brokers: each answer is tried before it is written."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner, Result

from deploy.local import LocalAuthority, MosquittoBroker, MosquittoSecurity, free_port
from edge_agent.cli import app
from edge_agent.config import AgentSettings
from edge_agent.guided_setup import SERVICE_FILE, next_commands
from tests.edge_agent.process import started
from waybill.identity.claims import make_token
from waybill.settings import load

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


class Place(NamedTuple):
    """A region's broker with TLS, a vehicle's broker, and the files that an operator hands out."""

    folder: Path
    region: MosquittoBroker
    vehicle: MosquittoBroker
    ca: Path
    token: Path

    def options(self, **changed: str) -> list[str]:
        port = str(self.region.port)
        given = {
            "tenant": "acme",
            "device": "bus-1",
            "region": "eu",
            "ca": str(self.ca),
            "region-host": "127.0.0.1",
            "region-port": port,
            "claim": "token",
            "token-file": str(self.token),
            "enrolment-port": port,
            "vehicle-host": "127.0.0.1",
            "vehicle-port": str(self.vehicle.port),
            "sensors": "native",
        }
        given |= {name.replace("_", "-"): value for name, value in changed.items()}
        return [word for name, value in given.items() if value for word in (f"--{name}", value)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("setup")
    authority = LocalAuthority(folder / "access")
    security = MosquittoSecurity(tls=authority.server("broker@eu", "eu"))
    region, vehicle = MosquittoBroker("eu", folder / "eu", security=security), MosquittoBroker("car", folder / "car")
    token = folder / "token"
    token.write_text(make_token().text.get_secret_value() + "\n")
    with started(region, vehicle):
        yield Place(folder, region, vehicle, authority.file, token)


def setup(out: Path, *words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["setup", "--out", str(out), *words], input=typed)


def test_answers_as_options_are_tried_and_written(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "agent.toml"
    made = setup(out, "--yes", *place.options())
    assert made.exit_code == 0, made.output
    assert "the region's broker answers at 127.0.0.1" in made.output
    assert "the vehicle's broker answers" in made.output
    settings = load(AgentSettings, out)
    assert (settings.device.tenant, settings.device.id) == ("acme", "bus-1")
    assert settings.enrolment is not None
    assert settings.enrolment.token_file == place.token
    assert stat.S_IMODE(out.stat().st_mode) & 0o027 == 0
    before = out.read_bytes()
    again = setup(out, "--yes", *place.options(device="bus-2"))
    assert (again.exit_code, out.read_bytes()) == (1, before)
    assert "--force" in again.output
    assert setup(out, "--yes", "--force", *place.options(device="bus-2")).exit_code == 0
    assert load(AgentSettings, out).device.id == "bus-2"
    of_package = next_commands(SERVICE_FILE, {"vehicle_host": "localhost", "token_file": "/t"})
    assert of_package[1:] == ("chgrp edge-agent /t && chmod 640 /t", "systemctl start edge-agent")


def test_a_wrong_answer_is_asked_again_with_the_reason(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "agent.toml"
    # a port where nothing listens, then the vehicle's broker, which speaks no TLS
    typed = f"{free_port()}\n{place.vehicle.port}\n{place.region.port}\n"
    made = setup(out, *place.options(region_port=""), typed=typed)
    assert made.exit_code == 0, made.output
    assert "does not answer" in made.output
    assert "check the port" in made.output
    assert load(AgentSettings, out).uplinks[0].port == place.region.port


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"device": "bus 1"}, "is not a name"),
        ({"region_host": "no-such-host.invalid"}, "has no address"),
        ({"token_file": "missing"}, "--token-file: missing cannot be used"),
        ({"claim": "tokn"}, "did you mean token?"),
        ({"sensors": "no-such-preset"}, "no preset"),
        ({"tenant": ""}, "--tenant is missing"),
    ],
)
def test_without_a_terminal_a_wrong_answer_ends_the_command(
    place: Place, tmp_path: Path, wrong: dict[str, str], words: str
) -> None:
    made = setup(tmp_path / "agent.toml", "--yes", *place.options(**wrong))
    assert made.exit_code == 1, made.output
    assert words in made.output
    assert not (tmp_path / "agent.toml").exists()


def test_a_certificate_of_another_authority_is_not_trusted(place: Place, tmp_path: Path) -> None:
    other = LocalAuthority(tmp_path / "other").file
    made = setup(tmp_path / "agent.toml", "--yes", *place.options(ca=str(other)))
    assert made.exit_code == 1
    assert "is not trusted" in made.output


def test_a_certificate_instead_of_a_token(place: Place, tmp_path: Path) -> None:
    files = LocalAuthority(place.folder / "access").client("acme/bus-1", "eu")
    out = tmp_path / "agent.toml"
    given = {"claim": "", "token_file": "", "enrolment_port": "", "certificate": str(files.certificate)}
    made = setup(out, "--yes", *place.options(**given, key=str(files.key)))
    assert made.exit_code == 0, made.output
    tls = load(AgentSettings, out).uplinks[0].tls
    assert tls is not None
    assert tls.certificate == files.certificate
    other = setup(out, "--yes", "--force", *place.options(**given, key=str(files.key), device="bus-2"))
    assert "is for acme/bus-1, but this device is acme/bus-2" in other.output


def test_a_vehicle_broker_that_is_not_set_up_yet_is_told(place: Place, tmp_path: Path) -> None:
    made = setup(tmp_path / "agent.toml", "--yes", *place.options(vehicle_port=str(free_port())))
    assert made.exit_code == 0, made.output
    assert "edge-agent broker-conf" in made.output
