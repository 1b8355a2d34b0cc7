"""Settings: wrong ones are named with the right word."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.local import LocalAuthority
from edge_agent import status_endpoint as metrics
from edge_agent.cli import app
from edge_agent.config import AgentSettings
from waybill.settings import SettingsError, parse

DOCS = Path(__file__).parents[2] / "docs/edge-agent.md"


def test_every_counter_that_outlives_a_restart_is_a_metric():
    counted = re.compile(r'(?:counters\.add\(|\.counts\[)f?"([a-z_]+)')
    found = {
        name
        for path in (DOCS.parents[1] / "edge_agent").rglob("*.py")
        for name in counted.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 10
    shown_by_reason = tuple(metrics.STORED_BY_REASON)
    assert {name for name in found if not name.startswith(shown_by_reason)} <= metrics.COUNTERS.keys()


NO_HOST = '[device]\nid = "eu-0001"\n[[uplinks]]\nregion = "eu"\n'
MINIMAL_FILE = NO_HOST + 'host = "127.0.0.1"\n'


def checked(folder: Path, text: str) -> tuple[int, str]:
    file = folder / "agent.toml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    return result.exit_code, result.output


def test_files_that_cannot_be_used_are_named_with_their_keys(tmp_path: Path) -> None:
    own = LocalAuthority(tmp_path / "authority").client("fleet/eu-0001")
    other = LocalAuthority(tmp_path / "stranger").client("fleet/eu-0001")
    (tmp_path / "junk.pem").write_text("junk")
    (tmp_path / "empty").write_text("\nsecret")
    pair = f'[uplinks.tls]\nca = "{own.ca}"\ncertificate = "{own.certificate}"\n'
    cases = {
        f'username = "u"\npassword_file = "{tmp_path}/none"\n': "uplinks.0.password_file",
        f'username = "u"\npassword_file = "{tmp_path}/empty"\n': "uplinks.0.password_file: its first line is empty",
        f'password_file = "{tmp_path}/empty"\n': "username and password_file belong together",
        f'[uplinks.tls]\nca = "{tmp_path}/none"\n': "uplinks.0.tls.ca",
        f'{pair}key = "{tmp_path}/none"\n': "tls.key",
        f'{pair}key = "{other.key}"\n': "uplinks.0.tls",
        f'[uplinks.tls]\nca = "{tmp_path}/junk.pem"\n': "uplinks.0.tls",
        f'[intake]\nusername = "u"\npassword_file = "{tmp_path}/none"\n': "intake.password_file",
    }
    for extra, expected in cases.items():
        code, said = checked(tmp_path, MINIMAL_FILE + extra)
        assert (code, expected in said) == (78, True), (extra, said)
    assert checked(tmp_path, f'{MINIMAL_FILE}{pair}key = "{own.key}"\n')[0] == 0


def test_a_claim_that_cannot_be_shown_is_named_until_it_has_given_a_certificate(tmp_path: Path) -> None:
    own = LocalAuthority(tmp_path / "authority").client("fleet/eu-0001")
    (tmp_path / "empty").write_text("\nsecret")
    begin = (
        f'{MINIMAL_FILE}[uplinks.tls]\nca = "{own.ca}"\n[buffer]\npath = "{tmp_path}/buffer"\n'
        f'[enrolment]\nhost = "127.0.0.1"\nca = "{own.ca}"\n'
    )
    none = f"{tmp_path}/none cannot be read"
    cases = {
        f'token_file = "{tmp_path}/none"\n': f"enrolment.token_file: {none}",
        f'token_file = "{tmp_path}/empty"\n': f"enrolment.token_file: {tmp_path}/empty: its first line is empty",
        f'certificate = "{tmp_path}/none"\nkey = "{own.key}"\n': f"enrolment.certificate: {none}",
        f'certificate = "{own.certificate}"\nkey = "{tmp_path}/none"\n': f"enrolment.key: {none}",
    }
    for claim, expected in cases.items():
        code, said = checked(tmp_path, begin + claim)
        assert (code, expected in said) == (78, True), (claim, said)
    held = tmp_path / "buffer" / "certificates" / "default" / "eu-0001"
    held.mkdir(parents=True)
    (held / "current.pem").write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    for claim in cases:
        code, said = checked(tmp_path, begin + claim)
        assert code == 0, said


def test_plain_text_to_another_machine_needs_the_word_and_to_this_one_not(tmp_path: Path) -> None:
    for host, is_open in (("mqtt.eu.example", True), ("10.0.0.5", True), ("127.0.0.1", False), ("::1", False)):
        text = NO_HOST + f'host = "{host}"\n'
        code, said = checked(tmp_path, text)
        assert (code == os.EX_CONFIG, "uplinks.0.tls: " in said, "insecure = true" in said) == (is_open,) * 3
        code, said = checked(tmp_path, f"insecure = true\n{text}")
        assert (code, "plain text" in said) == (0, is_open)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[bufer]\n", "did you mean 'buffer'?"),
        ("[observe]\n", "known are"),
        ("[buffer]\nport = 1\n", "known are commit_delay_ms"),
        ("[status]\nprot = 1\n", "did you mean 'port'?"),
        ("[intake]\nreceive_max = 1\n", "did you mean 'receive_maximum'?"),
    ],
)
def test_only_a_near_key_of_the_same_table_is_suggested(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(AgentSettings, MINIMAL_FILE + text, "x")
    assert said in str(caught.value)
