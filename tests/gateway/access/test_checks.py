"""What an access daemon's file must fit: its region, its authority, keys, certificates and folders."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.access.access_key import AccessKey
from gateway.access.cli import app
from gateway.access.clock_watch import ClockWatch
from gateway.access.config import AccessSettings
from gateway.access.daemon import AccessDaemon
from gateway.config import RegistrySettings
from tests.identity.makers import CERTIFICATE, CHANGE, active, expected, operator, operators_file, trusting
from tests.tokens import token_file
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.confirmations import decode_confirmation, encode_confirmation, is_of_its_region
from waybill.identity.errors import IdentityError, SignatureRefused
from waybill.identity.pki_folder import PkiFolder
from waybill.identity.registry import enrol
from waybill.identity.registry_messages import WARRANT as WARRANT_PROPERTY
from waybill.identity.registry_messages import entry_body, signed_by
from waybill.identity.signatures import NewOperator, next_publication_id, trust_operator, write_operator
from waybill.pulsar.cluster_clock import ClockDiffers, ClockUnknown
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import load

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
    assert (code, "valid. Access daemon of the region eu" in text) == (0, True), text
    assert "warning" not in text
    assert not (tmp_path / "rules").exists()
    assert check(command="prepare")[0] == 0
    assert (tmp_path / "rules").exists()


def test_an_authority_in_a_secret_gets_a_folder_that_knows_what_the_office_issued(
    check: Callable[..., tuple[int, str]], made: Path, tmp_path: Path
) -> None:
    office, given, folder = made / "pki/regions/eu", tmp_path / "given", tmp_path / "authority"
    given.mkdir()
    for file in (*office.glob("authority.*"), office / "root.pem", *office.glob("issued/*.pem")):
        (given / file.name).write_bytes(file.read_bytes())
    placed = f'folder = "{folder}"\nsource = "{given}"\nkey = "{given}/authority.key"'
    former = f'folder = "{office}"'
    assert check(former, placed, "prepare")[0] == 0
    issued = {file.name for file in office.glob("issued/*.pem")}
    assert {file.name for file in folder.glob("issued/*.pem")} == issued != set()
    # What has been put away stays there, and the key stays where it was.
    AuthorityFolder.open(folder, given / "authority.key").put_away(min(issued))
    assert check(former, placed, "prepare")[0] == 0
    assert {file.name for file in folder.glob("*/*.pem")} == issued
    assert {file.name for file in folder.glob("issued/*.pem")} == issued - {min(issued)}
    assert not (folder / "authority.key").exists()


WRONG = [
    ('region = "eu"', 'region = "us"', "region: 'us' has the authority"),
    ("pki/regions/eu", "pki/regions/mars", "authority.folder: "),
    ("/eu.key", "/nobody.key", "registry.key: "),
    ("/operators.toml", "/nobody.toml", "registry.operators: "),
    ("[broker.server]\n", 'control_socket = "/run/control"\n[broker.server]\n', "exactly one of them"),
    ("/eu/certificate.pem", "/us/certificate.pem", "is the certificate of access@us"),
    ("/eu/certificate.pem", "/server/certificate.pem", "is the certificate of broker@eu (kind server)"),
    ("[registry]\n", '[registry]\naccess.token_file = "/nowhere"\n', "registry.access.token_file: "),
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


URL = "https://pulsar.eu:8443"


class Clock:
    def __init__(self) -> None:
        self.found: Exception | None = None

    def __call__(self, _: str, __: PulsarAccess) -> None:
        if self.found is not None:
            raise self.found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> ClockWatch:
    return ClockWatch(URL, PulsarAccess(), clock)


@pytest.mark.parametrize(("ahead_s", "said"), [(-420.0, "420 s behind"), (90.0, "90 s ahead of")])
def test_a_clock_that_is_off_is_a_problem_in_clear_words_until_it_is_right(
    clock: Clock, watch: ClockWatch, ahead_s: float, said: str
) -> None:
    clock.found = ClockDiffers(URL, ahead_s)
    watch.look()
    assert not watch.is_good
    assert f"this machine's clock is {said} that of {URL}" in watch.problem
    clock.found = ClockUnknown("away")
    watch.look()
    assert (watch.is_good, said in watch.problem) == (False, True), "nobody said that it is right"
    clock.found = None
    watch.look()
    assert (watch.is_good, watch.problem) == (True, "")


def test_a_cluster_that_does_not_say_is_a_problem_and_keeps_nobody_locked_in(clock: Clock, watch: ClockWatch) -> None:
    clock.found = ClockUnknown("the clock of x is not known: refused")
    watch.look()
    assert (watch.is_good, watch.problem) == (True, "the clock of x is not known: refused")


def test_no_certificate_is_signed_by_a_clock_that_is_not_known_to_be_right(made: Path, tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text(settings(made, tmp_path))
    enrolment = AccessDaemon(load(AccessSettings, tmp_path / "access.toml"))._enrolment
    assert enrolment is not None
    with pytest.raises(IdentityError, match="not compared"):
        enrolment._check(active(), datetime.now(UTC))


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ENTRY = enrol(expected(), CERTIFICATE, CHANGE)


ANNA = operator("anna")
WARRANT = signed_by(ANNA.key)(
    expected(), entry_body(expected()), next_publication_id(None, int(NOW.timestamp() * 1000), 5), ""
)[WARRANT_PROPERTY]


def enroller(name: str = "access@eu", **more: Any) -> NewOperator:
    return operator(name, **({"kinds": ("enrolment",)} | more))


def key_of(folder: Path, own: NewOperator, *trusted: NewOperator) -> AccessKey:
    write_operator(folder / "own.key", own)
    operators = operators_file(folder / "operators.toml", *trusted)
    settings = RegistrySettings(
        tenants=("acme",), service_url="pulsar://host:6650", operators=operators, key=folder / "own.key"
    )
    return AccessKey(settings, "eu", settings.followed())


def test_a_key_that_is_trusted_signs_and_its_end_is_known(tmp_path: Path) -> None:
    own = enroller(valid_until=NOW + timedelta(days=1))
    key = key_of(tmp_path, own, own, ANNA)
    assert (key.problem(NOW), key.ends) == ("", NOW + timedelta(days=1))
    key.check(ENTRY, WARRANT, NOW)
    assert "valid" in key.problem(NOW + timedelta(days=1))
    with pytest.raises(SignatureRefused):
        key.check(ENTRY, WARRANT, NOW + timedelta(days=1))


def test_without_an_operators_word_that_readers_believe_nothing_is_to_be_signed(tmp_path: Path) -> None:
    own = enroller()
    with pytest.raises(SignatureRefused, match="warrant"):
        key_of(tmp_path, own, own, ANNA).check(ENTRY, "", NOW)
    # Her key was taken out: it was stolen.
    (tmp_path / "without").mkdir()
    with pytest.raises(SignatureRefused):
        key_of(tmp_path / "without", own, own).check(ENTRY, WARRANT, NOW)


@pytest.mark.parametrize("trusted", [enroller(), operator("anna")])
def test_a_key_that_the_daemon_itself_does_not_trust_is_a_problem(tmp_path: Path, trusted: NewOperator) -> None:
    key = key_of(tmp_path, enroller(), trusted)
    assert "push key access@eu --tenant '*' --kind enrolment" in key.problem(NOW)
    with pytest.raises(SignatureRefused):
        key.check(ENTRY, WARRANT, NOW)


def test_a_confirmation_counts_only_if_its_region_signed_it(tmp_path: Path) -> None:
    eu, us, anna = enroller(), enroller("access@us"), operator("anna")
    keys = trusting(eu, us, anna)
    body = encode_confirmation("eu", [("acme/bus-1", "an id")], 1.0)
    found = decode_confirmation(body)
    assert found is not None
    signed = {}
    for name, own in {"eu": eu, "us": us, "anna": anna}.items():
        (tmp_path / name).mkdir()
        key = key_of(tmp_path / name, own, eu, us, anna)
        signed[name] = key.sign_confirmation(body, int(NOW.timestamp() * 1000))
    assert is_of_its_region(found, body, signed["eu"], keys)
    for properties in (signed["us"], signed["anna"], {}):
        assert not is_of_its_region(found, body, properties, keys)
    other = encode_confirmation("eu", [("acme/bus-2", "an id")], 1.0)
    changed = decode_confirmation(other)
    assert changed is not None
    assert not is_of_its_region(changed, other, signed["eu"], keys)


@pytest.mark.parametrize("tenants", [[], ["acme", "acme"]])
def test_a_registry_without_tenants_is_an_error_that_says_how_to_name_them(tenants: list[str]) -> None:
    with pytest.raises(ValueError, match=r'as tenants = \["acme"\]: .*persistent://TENANT/registry/devices'):
        RegistrySettings.model_validate({"service_url": "pulsar://host:1", "unsigned": True, "tenants": tenants})
