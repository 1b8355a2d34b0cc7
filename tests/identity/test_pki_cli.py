"""waybill pki: from the root to certificates that a broker and a device use, and what ends when."""

import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.identity.makers import regional_authority, root_authority
from waybill.daemon.tls import check_key_pair
from waybill.identity.authority import (
    KeyPair,
    Revoked,
    common_name,
    make_request,
    read_certificates,
    sign_revocation_list,
)
from waybill.identity.pki_cli import app
from waybill.identity.pki_folder import PkiFolder

SAFE = "safe.key"


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    folder = tmp_path / "pki"
    assert run(folder, "init").exit_code == 0
    assert run(folder, "region", "eu", "--servers", "localhost", "--servers", "127.0.0.1").exit_code == 0
    (folder / "root-authority" / "authority.key").rename(tmp_path / SAFE)
    return folder


def run(folder: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--folder", str(folder)])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["issue", "broker@eu", "--region", "eu", "--at", "127.0.0.1", "--at", "localhost"], "broker@eu"),
        (["issue", "gateway@eu-1", "--region", "eu"], "gateway@eu-1"),
        (["issue", "access@eu", "--region", "eu"], "access@eu"),
        (["issue", "acme/bus-17", "--region", "eu"], "acme/bus-17"),
        (["issue", "claim@VIN-1", "--region", "eu"], "claim@VIN-1"),
    ],
    ids=lambda part: part if isinstance(part, str) else part[0],
)
def test_each_command_makes_files_that_tls_takes_without_the_root_s_key(
    pki: Path, tmp_path: Path, command: list[str], name: str
) -> None:
    out = tmp_path / "out"
    done = run(pki, *command, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["name"] == name
    assert common_name(read_certificates((out / "certificate.pem").read_bytes())[0].subject) == name
    check_key_pair(out / "certificate.pem", out / "key.pem")
    ssl.create_default_context(cafile=str(out / "ca.pem"))


def test_the_gateways_of_a_region_have_one_secret_and_those_of_another_region_another(
    pki: Path, tmp_path: Path
) -> None:
    assert run(pki, "region", "us", "--root-key", tmp_path / SAFE).exit_code == 0
    for name, region in (("eu-1", "eu"), ("eu-2", "eu"), ("us-1", "us")):
        run(pki, "issue", f"gateway@{name}", "--region", region, "--out", tmp_path / name)
    first, second, other = (tmp_path / name / "share" for name in ("eu-1", "eu-2", "us-1"))
    assert first.read_text() == second.read_text() != other.read_text()
    assert len(first.read_text().strip()) == 32
    assert first.stat().st_mode & 0o077 == 0


def test_a_device_may_keep_its_key_to_itself(pki: Path, tmp_path: Path) -> None:
    key, request = KeyPair.generate(), tmp_path / "request.pem"
    request.write_bytes(make_request(key, "acme/bus-1"))
    out = tmp_path / "out"
    assert run(pki, "issue", "acme/bus-1", "--region", "eu", "--out", out, "--request", request).exit_code == 0
    assert read_certificates((out / "certificate.pem").read_bytes())[0].public_key() == key.public
    assert not (out / "key.pem").exists()
    other = tmp_path / "other"
    refused = run(pki, "issue", "acme/bus-2", "--region", "eu", "--out", other, "--request", request)
    assert refused.exit_code == 1
    assert "not for 'acme/bus-2'" in refused.output


def test_no_command_replaces_a_key_or_another_s_certificate(pki: Path, tmp_path: Path) -> None:
    out, request = tmp_path / "out", tmp_path / "request.pem"
    assert run(pki, "issue", "gateway@eu-9", "--region", "eu", "--out", out).exit_code == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    request.write_bytes(make_request(KeyPair.generate(), "acme/bus-17"))
    for command in (
        ("issue", "acme/bus-17"),
        ("issue", "acme/bus-17", "--request", request),
        ("issue", "gateway@eu-9"),
        ("issue", "claim@VIN-1"),
        ("issue", "broker@eu", "--at", "127.0.0.1"),
    ):
        refused = run(pki, *command, "--region", "eu", "--out", out)
        assert refused.exit_code == 1
        assert "gateway@eu-9" in refused.output
        assert "never replaced" in refused.output
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert "gateway@eu-9" in run(pki, "renew", out).output
    assert (out / "key.pem").read_bytes() == before["key.pem"]


def test_one_folder_that_cannot_be_renewed_keeps_no_other_from_it(pki: Path, tmp_path: Path) -> None:
    for name in ("eu-1", "eu-2", "eu-3"):
        run(pki, "issue", f"gateway@{name}", "--region", "eu", "--out", tmp_path / name, "--days", "20")
    (tmp_path / "eu-2" / "key.pem").write_bytes((tmp_path / "eu-3" / "key.pem").read_bytes())
    (tmp_path / "stray").mkdir()
    (tmp_path / "file").write_text("")
    names = ("eu-1", "stray", "file", "nothing", "eu-2", "eu-3")
    renewed = run(pki, "renew", *(tmp_path / name for name in names))
    assert renewed.exit_code == 1
    lines = renewed.output.splitlines()
    good = [name for name in names if any(f"{tmp_path / name}: gateway@{name}, good" in line for line in lines)]
    failed = [name for name in names if any(f"{tmp_path / name} is not renewed" in line for line in lines)]
    assert (good, failed) == (["eu-1", "eu-3"], ["stray", "file", "nothing", "eu-2"])
    as_json = run(pki, "renew", tmp_path / "stray", tmp_path / "eu-1", "--json").stdout.splitlines()
    assert ["error" in json.loads(line) for line in as_json] == [True, False]


def test_a_folder_is_shown_as_it_is_renewed(pki: Path, tmp_path: Path) -> None:
    run(pki, "issue", "broker@eu", "--region", "eu", "--at", "localhost", "--out", tmp_path / "broker")
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "broker"), "--json"])
    assert (shown.exit_code, json.loads(shown.output)[0]["name"]) == (0, "broker@eu")


def test_a_region_needs_the_root_s_key_and_is_renewed_with_it(pki: Path, tmp_path: Path) -> None:
    assert "say where it is kept by --root-key" in run(pki, "region", "us").output
    safe = tmp_path / SAFE
    assert run(pki, "region", "us", "--root-key", safe).exit_code == 0
    assert "never replaced" in run(pki, "region", "us", "--root-key", safe).output
    assert run(pki, "region", "us", "--root-key", safe, "--renew", "--days", "1000").exit_code == 0
    assert listed(pki, "--within", 900)[1]["Waybill regional authority us"] == "good"


def listed(pki: Path, *arguments: object) -> tuple[int, dict[str, str]]:
    done = run(pki, "list", "--json", *arguments)
    return done.exit_code, {one["name"]: one["state"] for one in json.loads(done.output)}


def test_what_ends_soon_is_named_until_it_is_renewed(pki: Path, tmp_path: Path) -> None:
    run(pki, "issue", "gateway@eu-1", "--region", "eu", "--out", tmp_path / "gw", "--days", "20")
    server = ["issue", "broker@eu", "--region", "eu", "--at", "localhost", "--out", tmp_path / "broker"]
    run(pki, *server, "--days", "80")
    assert listed(pki) == (
        1,
        {
            "gateway@eu-1": "ends soon",
            "broker@eu": "good",
            "Waybill regional authority eu": "good",
            "Waybill root": "good",
        },
    )
    assert listed(pki, "--within", 10)[0] == 0
    key = (tmp_path / "gw" / "key.pem").read_bytes()
    assert run(pki, "renew", tmp_path / "gw", tmp_path / "broker").exit_code == 0
    code, states = listed(pki)
    assert (code, states["gateway@eu-1"]) == (0, "good")
    assert (tmp_path / "gw" / "key.pem").read_bytes() == key
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "broker" / "certificate.pem"), "--within", "100", "--json"])
    assert (shown.exit_code, json.loads(shown.output)[0]["what"]) == (1, "server")


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (
            ["issue", "gateway@eu-1", "--region", "ue"],
            "has no region 'ue': it has eu; `waybill pki region` makes one; did you mean 'eu'?",
        ),
        (["issue", "gateway@eu-1", "--region", "EU"], "did you mean 'eu'?"),
        (
            ["issue", "gateway@eu-1", "--region", "mars"],
            "it has eu; `waybill pki region` makes one",
        ),
        (["issue", "access@eu", "--region", "EU"], "did you mean 'eu'?"),
        (["issue", "acme/bus-1", "--region", "Eu"], "did you mean 'eu'?"),
        (["issue", "claim@VIN-1", "--region", "euu"], "did you mean 'eu'?"),
        (["issue", "claim@token-0123456789abcdef", "--region", "eu"], "has the form of a token's name"),
        (["issue", "bus-1", "--region", "eu"], "is not a name: a device is TENANT/DEVICE"),
        (["issue", "acme/a b", "--region", "eu"], "is not a name"),
        (["issue", "broker", "--region", "eu", "--at", "localhost"], "only broker@NAME and pulsar@NAME"),
        (["issue", "broker@", "--region", "eu", "--at", "localhost"], "only broker@NAME and pulsar@NAME"),
        (
            ["issue", "gateway@eu", "--region", "eu", "--at", "localhost"],
            "only broker@NAME and pulsar@NAME",
        ),
        (["issue", "broker@eu", "--region", "eu", "--at", "https://localhost:8883"], "write one alone"),
        (["issue", "broker@eu", "--region", "ue", "--at", "localhost"], "did you mean 'eu'?"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_a_slip_of_the_pen_writes_nothing_and_is_answered_with_what_to_write(
    pki: Path, tmp_path: Path, command: list[str], advice: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    refused = run(pki, *command, "--out", tmp_path / "out")
    assert (refused.exit_code, advice in refused.output) == (1, True), refused.output
    assert sorted(tmp_path.rglob("*")) == before


DAY = timedelta(days=1)


def revocations_shown(folder: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    done = CliRunner().invoke(app, ["list", "--folder", str(folder), "--json", *arguments])
    return done.exit_code, {one["name"]: one["state"] for one in json.loads(done.output)}


def test_a_revoked_device_is_not_called_good(tmp_path: Path) -> None:
    pki, now = PkiFolder(tmp_path / "daemon" / "pki"), datetime.now(UTC)
    authority = pki.create_region(pki.create_root(now=now, lifetime=900 * DAY), "eu", now=now, lifetime=800 * DAY)
    revoked = []
    for name in ("acme/bus-1", "acme/bus-2"):
        files = pki.write("eu", tmp_path / name, name, now=now, lifetime=20 * DAY)
        assert files.certificate is not None
        revoked.append(Revoked(read_certificates(files.certificate.read_bytes())[0].serial_number, now))
    others = {"Waybill root": "good", "Waybill regional authority eu": "good"}
    assert revocations_shown(pki.folder) == (1, {"acme/bus-1": "ends soon", "acme/bus-2": "ends soon", **others})
    # Where the access daemon of a region has it: around the folder of its authority. Lists of others are ignored.
    file = tmp_path / "daemon" / "broker.crl"
    signers = (authority.authority, regional_authority(root_authority()))
    lists = [
        sign_revocation_list(one, revoked[:count], number=1, this_update=now - DAY, next_update=now + DAY)
        for one, count in zip(signers, (1, 2), strict=True)
    ]
    file.write_bytes(b"".join(lists))
    assert revocations_shown(pki.folder) == (1, {"acme/bus-1": "revoked", "acme/bus-2": "ends soon", **others})
    file.rename(tmp_path / "elsewhere")
    assert revocations_shown(pki.folder)[1]["acme/bus-1"] == "ends soon"
    assert revocations_shown(pki.folder, "--revocations", str(tmp_path / "elsewhere"))[1]["acme/bus-1"] == "revoked"
