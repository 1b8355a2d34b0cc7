"""What is kept by a key that is trusted no more is given up only by somebody who says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.access.cli import app
from gateway.access.seen_entries import SEEN_FILE, SeenEntries
from gateway.access.status import AccessStatus
from tests.gateway.access.test_checks import made as _made
from tests.gateway.access.test_checks import settings
from tests.identity.operators import operator
from tests.identity.registry_strategies import active, change
from tests.identity.test_registry_signing import ANNA, signed
from waybill.daemon.status_server import StatusServer, json_answer
from waybill.identity.registry import revoke
from waybill.identity.signatures import trust_operator

made = _made
STRANGER = operator("stranger", kinds=("device",))


@pytest.fixture
def forget(made: Path, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    trust_operator(made / "operators.toml", ANNA)
    with SeenEntries(made / "pki/regions/eu" / SEEN_FILE) as seen:
        for tenant in ("acme", "zeta"):
            seen.keep(signed(revoke(active(tenant), change()), STRANGER))
        seen.keep(signed(active("acme", "bus-2"), ANNA))

    def run(*devices: str, port: int = 1) -> tuple[int, str]:
        file = tmp_path / "access.toml"
        file.write_text(f"{settings(made, tmp_path)}\n[status]\nport = {port}\n")
        done = CliRunner().invoke(app, ["forget", *devices, "--config", str(file)])
        return done.exit_code, done.output

    return run


def test_what_is_in_doubt_is_listed_and_forgotten_by_name(forget: Callable[..., tuple[int, str]]) -> None:
    assert forget() == (0, "acme/bus-1 revoked unknown-key\nzeta/bus-1 revoked unknown-key\n")
    assert forget("acme/bus-1") == (0, "")
    assert forget() == (0, "zeta/bus-1 revoked unknown-key\n")


@pytest.mark.parametrize(("device", "why"), [("acme/bus-2", "it holds"), ("acme/bus-3", "nothing is kept")])
def test_what_is_trusted_or_not_there_is_refused_and_nothing_is_forgotten(
    forget: Callable[..., tuple[int, str]], device: str, why: str
) -> None:
    code, said = forget("zeta/bus-1", device)
    assert (code, why in said) == (1, True)
    assert "zeta/bus-1" in forget()[1]


def test_while_the_daemon_runs_nothing_is_forgotten(forget: Callable[..., tuple[int, str]]) -> None:
    running = AccessStatus(region="eu", pid=7, started_at="now").model_dump_json()
    with StatusServer("127.0.0.1", 0, {"/status": lambda: json_answer(running)}) as server:
        code, said = forget("zeta/bus-1", port=server.port)
    assert (code, "stop it first" in said) == (1, True)
