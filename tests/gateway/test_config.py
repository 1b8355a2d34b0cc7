"""Settings, the commands that need no server, and the page that explains them."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs
from typer.testing import CliRunner

import gateway
import gateway.cli
import waybill
from deploy.local import LocalAuthority, free_port
from gateway.cli import _reloading, app
from gateway.config import GatewaySettings
from gateway.status import GatewayStatus
from tests.gateway.strategies import settings
from tests.tokens import token_file
from waybill.settings import load

SERVICE = {"service_url": "pulsar://127.0.0.1:6650"}
MINIMAL = """
name = "gateway-eu-1"
region = "eu"
insecure = true
[mqtt]
host = "127.0.0.1"
[pulsar]
service_url = "pulsar://127.0.0.1:6650"
[tenants.fleet]
"""
OPEN = MINIMAL.replace("insecure = true\n", "")
CA = "/etc/ssl/certs/ca-certificates.crt"
PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def run(command: str, config: Path) -> Any:
    return CliRunner().invoke(app, [command, "-c", str(config)])


def test_each_tenant_has_a_pulsar_tenant_of_its_own_unless_all_share_one() -> None:
    own = settings(tenants={"acme": {}, "kaze": {}}, pulsar=SERVICE)
    assert own.pulsar_tenants == ("acme", "kaze")
    assert own.pulsar_tenant_of("kaze") == "kaze"
    shared = settings(tenants={"acme": {}, "kaze": {}}, pulsar={"tenant": "fleet"})
    assert shared.pulsar_tenants == ("fleet",)
    assert shared.pulsar_tenant_of("kaze") == "fleet"


def test_the_example_in_the_page_is_a_configuration(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(PAGE.read_text(encoding="utf-8").split("```toml")[1].split("```")[0], encoding="utf-8")
    checked = run("check-config", config)
    assert checked.exit_code == 0
    assert checked.output.removeprefix(f"{tmp_path}/") in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["run", "check-config", "status"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: "),
        ('nam = "x"', "nam: no such setting"),
        ("a = ", "is not valid TOML"),
        (".", "cannot be read: "),
    ],
)
def test_a_configuration_that_is_missing_or_wrong_ends_every_command_with_78(
    tmp_path: Path, command: str, text: str | None, said: str
) -> None:
    config = tmp_path / "gateway.toml"
    if text == ".":
        config.mkdir()
    elif text is not None:
        config.write_text(text, encoding="utf-8")
    answer = run(command, config)
    assert answer.exit_code == os.EX_CONFIG
    assert f"{config}: {said}" in answer.stderr
    assert all(line.startswith(f"{config}: ") for line in answer.stderr.splitlines())


def test_a_gateway_that_does_not_run_has_no_status(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f"{MINIMAL}[status]\nport = {free_port()}\n", encoding="utf-8")
    asked = run("status", config)
    assert asked.exit_code == 1
    assert asked.output.startswith("fleet-gateway: no gateway answers")


def keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        inner = [part for part in (field.annotation, *getattr(field.annotation, "__args__", ())) if is_model(part)]
        found += keys(inner[0], f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return found


def is_model(part: object) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def test_each_name_of_the_status_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in GatewayStatus.model_fields if f"`{name}" not in page] == []


def checked(tmp_path: Path, text: str) -> Any:
    config = tmp_path / "gateway.toml"
    config.write_text(text, encoding="utf-8")
    return run("check-config", config)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('tls = { ca = "/nowhere/ca.pem" }', "mqtt.tls.ca: /nowhere/ca.pem cannot be read: there is no such file"),
        ('tls = { ca = "/etc/hostname", key = "k" }', "certificate and key belong together"),
        ('tls = { ca = "/etc/passwd" }', "mqtt.tls: certificates cannot be loaded"),
        ('password_file = "p"', "username and password_file belong together"),
        (
            'username = "u"\npassword_file = "/nowhere"',
            "mqtt.password_file: /nowhere cannot be read: there is no such file",
        ),
        (f'tls = {{ ca = "{CA}", certificate = "{CA}", key = "{CA}" }}', "with tls.certificate a share_file is needed"),
        ('share_file = "/etc/hostname"', "mqtt.share_file: cannot be used: its first line is not a name"),
        ('share_file = "/nowhere/share"', "mqtt.share_file: cannot be used"),
        ("max_packet_bytes = 65536", "mqtt.max_packet_bytes must be at least"),
    ],
)
def test_what_could_not_work_on_this_machine_is_found_before_the_start(tmp_path: Path, lines: str, said: str) -> None:
    answer = checked(tmp_path, MINIMAL.replace('host = "127.0.0.1"', f'host = "127.0.0.1"\n{lines}'))
    assert answer.exit_code == os.EX_CONFIG
    assert said in answer.output
    config = tmp_path / "gateway.toml"
    assert run("run", config).exit_code == os.EX_CONFIG, "and a start says the same"


def test_a_token_that_has_ended_is_a_fault_and_one_that_ends_soon_a_warning(tmp_path: Path) -> None:
    for table, lines in (
        ("pulsar.access.token_file", '[pulsar]\naccess.token_file = "{}"'),
        (
            "registry.access.token_file",
            (
                '[registry]\ntenants = ["fleet"]\nservice_url = "pulsar://x"\n'
                'unsigned = true\naccess.token_file = "{}"\n[pulsar]'
            ),
        ),
    ):
        for ends_in_s, status, said in ((-1, os.EX_CONFIG, "ended at"), (3600, 0, "ends at")):
            file = token_file(tmp_path, "gateway-eu", ends_in_s=ends_in_s)
            answer = checked(tmp_path, MINIMAL.replace("[pulsar]", lines.format(file)))
            assert answer.exit_code == status, answer.output
            assert f"{table}: token of gateway-eu in {file} {said}" in answer.output


def test_without_the_word_tls_authentication_and_the_registry_are_demanded(tmp_path: Path) -> None:
    answer = checked(tmp_path, OPEN)
    assert answer.exit_code == os.EX_CONFIG
    for key in ("mqtt.tls", "pulsar.service_url", "pulsar.access.token_file", "registry"):
        assert f"{tmp_path}/gateway.toml: {key}: " in answer.output, key
    assert answer.output.count("or say insecure = true at the top") == 4
    registry = '[registry]\ntenants = ["fleet"]\nservice_url = "pulsar://127.0.0.1:6650"\nunsigned = true\n'
    said = checked(tmp_path, OPEN + registry).output
    for key in ("service_url", "access.token_file", "unsigned"):
        assert f"registry.{key}: " in said, key
    assert run("run", tmp_path / "gateway.toml").exit_code == os.EX_CONFIG


def test_a_certificate_of_another_gateway_is_named_with_both_names(tmp_path: Path) -> None:
    files = LocalAuthority(tmp_path / "authority").client("gateway@eu-2", "eu")
    (tmp_path / "share").write_text("0" * 32 + "\n")
    tls = f'share_file = "{tmp_path}/share"\n[mqtt.tls]\nca = "{files.ca}"\n'
    tls += f'certificate = "{files.certificate}"\nkey = "{files.key}"\n'
    text = MINIMAL.replace('host = "127.0.0.1"\n', f'host = "127.0.0.1"\n{tls}')
    answer = checked(tmp_path, text)
    assert answer.exit_code == os.EX_CONFIG
    assert "is for 'gateway@eu-2', but this gateway is 'gateway@gateway-eu-1'" in answer.output
    assert checked(tmp_path, text.replace("gateway-eu-1", "eu-2", 1)).exit_code == 0


def test_a_file_with_a_secret_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    answer = checked(tmp_path, MINIMAL.replace("[tenants", 'access.token = "t"\n[tenants'))
    assert "others can read the token" in answer.output
    (tmp_path / "password").write_text("p\n")
    login = f'host = "127.0.0.1"\nusername = "u"\npassword_file = "{tmp_path}/password"'
    answer = checked(tmp_path, MINIMAL.replace('host = "127.0.0.1"', login))
    assert "others can read the password" in answer.output


def test_a_reload_keeps_what_was_in_force_and_names_what_waits_for_a_start(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(MINIMAL, encoding="utf-8")
    reload = _reloading(config, load(GatewaySettings, config))
    config.write_text(MINIMAL + "[drain]\npause_s = 7\n[log]\nlevel = 'debug'\n", encoding="utf-8")
    with capture_logs() as lines:
        assert reload().pause_s == 7
    assert [line["settings"] for line in lines if "settings" in line] == [["log"]]
    config.write_text("no toml", encoding="utf-8")
    assert reload().pause_s == 7, "not those of the start"


@pytest.mark.parametrize("key", [key.rpartition(".")[2] for key in keys(GatewaySettings)])
def test_every_setting_is_read_somewhere(key: str) -> None:
    folders = [Path(str(package.__file__)).parent for package in (gateway, waybill)]
    code = [file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py")]
    uses = sum(len(re.findall(rf"\.{key}\b", text)) for text in code)
    assert uses, f"{key} has no effect"


def test_a_tenant_that_is_served_and_not_in_the_registry_is_an_error(tmp_path: Path) -> None:
    registry = '[registry]\ntenants = ["zeta"]\nservice_url = "pulsar://127.0.0.1:6650"\nunsigned = true\n'
    answer = checked(tmp_path, f"{MINIMAL}[tenants.acme]\n{registry}")
    assert (answer.exit_code, "registry.tenants: lacks acme" in answer.output) == (os.EX_CONFIG, True), answer.output
