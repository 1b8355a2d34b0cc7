"""What an access daemon's file must fit: its region, its authority, keys, certificates and folders."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.access.cli import app
from tests.identity.operators import operator
from tests.tokens import token_file
from waybill.identity.pki_folder import PkiFolder
from waybill.identity.signatures import trust_operator, write_operator

LASTS = timedelta(days=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, now = tmp_path_factory.mktemp("region"), datetime.now(UTC)
    pki = PkiFolder(folder / "pki")
    root = pki.create_root(now=now, lifetime=LASTS)
    for region in ("eu", "us"):
        pki.create_region(root, region, servers=["localhost"], now=now, lifetime=LASTS)
        pki.write(region, folder / region, f"access@{region}", now=now, lifetime=LASTS)
        key = operator(f"access@{region}", kinds=("enrolment",))
        write_operator(folder / f"{region}.key", key)
        trust_operator(folder / "operators.toml", key)
    pki.write("eu", folder / "server", "broker@eu", servers=["localhost"], now=now, lifetime=LASTS)
    (folder / "token").write_text("a.b.c")
    return folder


def settings(made: Path, own: Path) -> str:
    """The file of the region eu; what the daemon writes is in `own`."""
    server = f"""certificate = "{made}/server/certificate.pem"
key = "{made}/server/key.pem"
ca = "{made}/server/ca.pem"
"""
    return f"""region = "eu"
insecure = true

[broker]
rules_file = "{own}/rules"
password_file = "{own}/passwords"
revocation_file = "{own}/lists.pem"
guard_secret_file = "{own}/guard"
guard_socket = "{own}/socket"
pid_file = "{own}/pid"
[broker.server]
conf_file = "{own}/devices.conf"
folder = "{own}"
[broker.server.tls]
{server}
[registry]
tenants = ["acme"]
service_url = "pulsar://127.0.0.1:1"
admin_url = "http://127.0.0.1:1"
operators = "{made}/operators.toml"
key = "{made}/eu.key"

[authority]
folder = "{made}/pki/regions/eu"

[enrolment]
secret_file = "{own}/secret"
[enrolment.broker]
rules_file = "{own}/claims-rules"
password_file = "{own}/claims-passwords"
pid_file = "{own}/claims-pid"
[enrolment.broker.server]
conf_file = "{own}/claims.conf"
[enrolment.broker.server.tls]
{server}
[enrolment.claims]
port = 2
[enrolment.devices]
port = 3
[enrolment.devices.tls]
ca = "{made}/eu/ca.pem"
certificate = "{made}/eu/certificate.pem"
key = "{made}/eu/key.pem"
"""


@pytest.fixture
def check(made: Path, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    def run(old: str = "", new: str = "", command: str = "check-config") -> tuple[int, str]:
        text, file = settings(made, tmp_path), tmp_path / "access.toml"
        assert old in text
        file.write_text(text.replace(old, new) if old else text)
        done = CliRunner().invoke(app, [command, "--config", str(file)])
        return done.exit_code, done.output

    return run


def test_a_file_that_fits_its_machine_is_right_and_prepared(
    check: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, text = check()
    assert (code, "right. Access daemon of the region eu" in text) == (0, True), text
    # This machine may have a broker that can crash.
    assert all("broker.program: Mosquitto" in line for line in text.splitlines() if "warning" in line), text
    assert not (tmp_path / "rules").exists()
    assert check(command="prepare")[0] == 0
    assert (tmp_path / "rules").exists()


WRONG = [
    ('region = "eu"', 'region = "us"', "region: 'us' has the authority"),
    ("pki/regions/eu", "pki/regions/mars", "authority.folder: "),
    ("/eu.key", "/nobody.key", "registry.key: "),
    ("/operators.toml", "/nobody.toml", "registry.operators: "),
    ("/socket", "/nowhere/socket", "broker.guard_socket: "),
    ("/rules", "/nowhere/rules", "broker.rules_file: "),
    ("/claims.conf", "/nowhere/claims.conf", "enrolment.broker.server.conf_file: "),
    ("/eu/certificate.pem", "/us/certificate.pem", "is the certificate of access@us"),
    ("/eu/certificate.pem", "/server/certificate.pem", "is the certificate of broker@eu (kind server)"),
    ("/server/certificate.pem", "/eu/certificate.pem", "broker.server.tls.certificate: "),
    ("/server/key.pem", "/nowhere/key.pem", "enrolment.broker.server.tls.key: "),
    ("/server/key.pem", "/eu/key.pem", "broker.server.tls: certificates cannot be loaded"),
    ("[registry]\n", '[registry]\naccess.token_file = "/nowhere"\n', "registry.access: "),
    ("[registry]\n", '[registry]\naccess.tls_ca = "/nowhere"\n', "registry.access.tls_ca: "),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong[1].strip().replace("\n", " "))
@pytest.mark.parametrize("command", ["check-config", "prepare", "run"])
def test_what_does_not_fit_is_named_and_nothing_is_written(
    check: Callable[..., tuple[int, str]], tmp_path: Path, command: str, wrong: tuple[str, str, str]
) -> None:
    old, new, named = wrong
    code, text = check(old, new, command)
    assert (code, named in text) == (78, True), text
    assert [file.name for file in tmp_path.iterdir()] == ["access.toml"]


def test_an_authority_that_did_not_sign_the_daemons_certificate_is_named(
    check: Callable[..., tuple[int, str]], made: Path
) -> None:
    """An authority was stolen, and the one that follows it was not brought here: both have the same name."""
    now, pki = datetime.now(UTC), PkiFolder(made / "other")
    pki.create_region(pki.create_root(now=now, lifetime=LASTS), "eu", now=now, lifetime=LASTS)
    code, text = check(f"{made}/pki/regions/eu", f"{made}/other/regions/eu")
    assert (code, f"authority.folder: {made}/other/regions/eu did not sign {made}/eu/certificate.pem" in text) == (
        78,
        True,
    ), text


def test_a_token_that_has_ended_is_named_before_it_keeps_the_daemon_waiting(
    check: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    for ends_in_s, status, said in ((-1, 78, "ended at"), (3600, 0, "warning: ")):
        file = token_file(tmp_path, "access-eu", ends_in_s=ends_in_s)
        code, text = check("[registry]\n", f'[registry]\naccess.token_file = "{file}"\n')
        assert (code, said in text) == (status, True), text
        assert f"registry.access.token_file: token of access-eu in {file}" in text
        assert check("[registry]\n", f'[registry]\naccess.token_file = "{file}"\n', "prepare")[0] == 0
