"""What the page says of a canary in a secured region is true: its keys may sign, and its settings are right."""

import json
import re
import shlex
import textwrap
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.reference.files import read_reference
from gateway.canary.config import CanarySettings
from gateway.canary.reference import contracts_text, fence_text, write_reference
from geo.reference.messages import scope_of
from waybill.commands import SUBCOMMANDS, command_line
from waybill.identity.errors import SignatureRefused
from waybill.identity.operator_keys import Scope
from waybill.identity.signatures import read_operators
from waybill.settings import validate

PAGE = (Path(__file__).parents[3] / "docs" / "canaries.md").read_text(encoding="utf-8")
SETUP = PAGE.partition("## Setting one up")[2].partition("\n## ")[0]


def block(of: str, language: str = "toml") -> str:
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```", SETUP, re.MULTILINE | re.DOTALL)
    (found,) = [one for one in blocks if of in one]
    return textwrap.dedent(found)


def words_of(lines: str) -> list[list[str]]:
    found = re.findall(r"^ *(?:[$#] |/opt/waybill/bin/)waybill (.*)$", lines, re.MULTILINE)
    return [shlex.split(one) for one in found]


def run(words: list[str]) -> tuple[int, str]:
    done = CliRunner().invoke(command_line(SUBCOMMANDS, words, "help"), words)
    return done.exit_code, done.output


def test_its_settings_are_right() -> None:
    settings = validate(CanarySettings, tomllib.loads(block('device = "canary-eu"')), "canary.toml")
    trusted = [settings.agent.uplinks[0].tls, settings.agent.enrolment]
    assert {str(one.ca) for one in trusted if one is not None} == {"/etc/waybill/root.pem"}
    # Pulsar's servers have a root of their own.
    clusters = {str(one.access.tls_ca) for one in (settings.regional, settings.centre) if one is not None}
    assert clusters == {"/etc/waybill/pulsar-ca.pem"}
    before = SETUP.partition("`canary.toml`:")[0]
    assert "pki/root-authority/root.pem /etc/waybill/root.pem" in before
    assert "pki/pulsar-authority/root.pem /etc/waybill/pulsar-ca.pem" in before


def test_each_command_and_option_is_there() -> None:
    found = words_of(SETUP)
    assert [words[:2] for words in found] == [
        ["push", "key"],
        ["push", "key"],
        ["device", "expect"],
        ["canary", "setup"],
        ["reference", "put"],
        ["canary", "check-config"],
    ]
    for words in found:
        code, said = run([*words[:2], "--help"])
        assert code == 0
        assert [one for one in words if one.startswith("--") and one not in said] == []


def test_its_keys_may_sign_the_device_and_what_setup_writes_and_the_first_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in words_of(SETUP)[:2]:
        code, said = run(words)
        assert code == 0, said
    keys = {one.name: one for one in read_operators(tmp_path / "operators.toml").keys.values()}
    keys["canaries"].check_right(Scope("device", frozenset({CANARY})))
    settings = validate(CanarySettings, tomllib.loads(block('device = "canary-eu"')), "canary.toml")
    month = datetime(2026, 3, 1, tzinfo=UTC)
    write_reference(tmp_path / "out", fence_text(settings), contracts_text(settings, month), replace=False)
    versions = read_reference([tmp_path / "out"])
    assert {one.kind for one in versions} == {"fence", "tariff", "legal_entity", "account"}
    for one in versions:
        scope = scope_of(one.kind, json.loads(one.body))
        keys["contracts"].check_right(scope)
        with pytest.raises(SignatureRefused):
            keys["canaries"].check_right(scope)


def test_what_checks_the_settings_has_the_environment_of_its_unit() -> None:
    unit = (Path(__file__).parents[3] / "deploy" / "systemd" / "waybill-canary.service").read_text(encoding="utf-8")
    of_unit = dict(line.partition("=")[::2] for line in unit.splitlines() if "=" in line)
    (command,) = re.findall(r"^ *# systemd-run (.*) \\\n *(\S+ canary check-config .*)$", SETUP, re.MULTILINE)
    assert f"--property=EnvironmentFile={of_unit['EnvironmentFile']}" in command[0]
    assert f"--uid={of_unit['User']}" in command[0]
    assert command[1].replace("check-config", "run") == of_unit["ExecStart"]
