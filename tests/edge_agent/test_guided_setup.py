"""What `edge-agent setup` writes and advises, without brokers."""

import os
import pwd
from pathlib import Path

import pytest

from edge_agent.checking import check_user
from edge_agent.config import AgentSettings
from edge_agent.errors import AgentError
from edge_agent.guided_setup import Answers, settings_text
from waybill.settings import parse

ANSWERS: Answers = {
    "tenant": "acme",
    "device": "bus-1",
    "region": "eu",
    "ca": "/etc/waybill/root.pem",
    "region_host": "eu.example.org",
    "region_port": "8883",
    "claim": "token",
    "token_file": "/etc/waybill/token",
    "enrolment_port": "8884",
    "vehicle_host": "127.0.0.1",
    "vehicle_port": "1883",
    "sensors": "native",
}


@pytest.mark.parametrize("name", ['a"b\n[x]', "tab\tand 'quotes'", "bus 🚌", "\\"])
def test_any_path_is_written_as_it_is(name: str) -> None:
    path = f"/etc/waybill/{name}"
    settings = parse(AgentSettings, settings_text(ANSWERS | {"ca": path}), "agent.toml")
    assert settings.enrolment is not None
    assert settings.enrolment.ca == Path(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_writes_nothing_into_the_buffer_of_the_service(tmp_path: Path) -> None:
    buffer = tmp_path / "buffer"
    text = settings_text(ANSWERS).replace("/var/lib/edge-agent", str(buffer))
    settings = parse(AgentSettings, text, "agent.toml")
    check_user(settings, "nobody")
    buffer.mkdir()
    check_user(settings, "nobody")
    os.chown(buffer, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(AgentError, match="runuser -u nobody --"):
        check_user(settings, "nobody")
