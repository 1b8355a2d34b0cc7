"""An authority's files: keys that only the owner reads, nothing replaced, everything that was signed on record."""

from __future__ import annotations

import json
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.identity.makers import MONTH, NOW, YEAR
from waybill.identity.authority import KeyPair, make_request, read_certificates
from waybill.identity.authority_folder import AuthorityFolder, issued_in
from waybill.identity.errors import AuthorityExists
from waybill.identity.pki_cli import app


@pytest.fixture
def root(tmp_path: Path) -> AuthorityFolder:
    return AuthorityFolder.create_root(tmp_path / "root", "Waybill root", now=NOW, lifetime=10 * YEAR)


@pytest.fixture
def regional(tmp_path: Path, root: AuthorityFolder) -> AuthorityFolder:
    return AuthorityFolder.create_regional(tmp_path / "eu", root, "eu", servers=["127.0.0.1"], now=NOW, lifetime=YEAR)


def test_keys_and_folders_are_their_owner_s_alone(tmp_path: Path, regional: AuthorityFolder) -> None:
    for name in ("root", "eu"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / name / "authority.key").stat().st_mode) == 0o600


def test_what_was_signed_is_listed_and_each_serial_is_another(root: AuthorityFolder, regional: AuthorityFolder) -> None:
    key = KeyPair.generate()
    for name in ("bus-2", "bus-1"):
        regional.device(make_request(key, f"acme/{name}"), "acme", name, now=NOW, lifetime=MONTH)
    regional.server(key, "broker@eu", ["127.0.0.1"], now=NOW, lifetime=MONTH)
    issued = issued_in(regional.folder)
    assert [one.name for one in issued] == ["acme/bus-1", "acme/bus-2", "broker@eu"]
    assert len({one.serial for one in issued}) == 3
    assert {one.issuer for one in issued} == {regional.authority.name}
    assert [one.name for one in issued_in(root.folder)] == [regional.authority.name]


def test_what_was_put_away_is_recorded_and_listed_as_before(regional: AuthorityFolder) -> None:
    key = KeyPair.generate()
    signed = [
        regional.device(make_request(key, f"acme/{name}"), "acme", name, now=NOW, lifetime=MONTH)
        for name in ("bus-1", "bus-2")
    ]
    regional.put_away(f"{signed[0].serial:040x}.pem")
    assert [one.name for one in issued_in(regional.folder)] == ["acme/bus-1", "acme/bus-2"]
    recorded = [regional.recorded(one.serial) for one in signed]
    assert [one and one.certificate for one in recorded] == [one.certificate for one in signed]
    assert regional.recorded(1) is None


def test_an_authority_is_never_replaced(root: AuthorityFolder) -> None:
    with pytest.raises(AuthorityExists):
        AuthorityFolder.create_root(root.folder, "another", now=NOW, lifetime=YEAR)
    with pytest.raises(AuthorityExists):
        AuthorityFolder.create_regional(root.folder, root, "eu", now=NOW, lifetime=YEAR)
    assert AuthorityFolder.open(root.folder).authority.certificate == root.authority.certificate


def test_the_region_needs_the_root_for_nothing_that_it_issues(root: AuthorityFolder, regional: AuthorityFolder) -> None:
    (root.folder / "authority.key").unlink()
    issued = AuthorityFolder.open(regional.folder).client(KeyPair.generate(), "gateway@eu", now=NOW, lifetime=MONTH)
    assert len(read_certificates(issued.chain_pem)) == 2


def test_a_renewed_region_keeps_its_key_and_what_it_signed(root: AuthorityFolder, regional: AuthorityFolder) -> None:
    before = regional.client(KeyPair.generate(), "gateway@eu", now=NOW, lifetime=MONTH)
    later = NOW + YEAR / 2
    renewed = root.renew_regional(regional, "eu", now=later, lifetime=YEAR)
    assert renewed.authority.certificate == AuthorityFolder.open(regional.folder).authority.certificate
    assert renewed.authority.certificate.not_valid_after_utc == later + YEAR
    before.certificate.verify_directly_issued_by(renewed.authority.certificate)


def test_an_authority_that_a_file_refuses_is_shown_as_refused(tmp_path: Path) -> None:
    now, file = datetime.now(UTC), tmp_path / "ca.pem"
    root = AuthorityFolder.create_root(tmp_path / "root", "Waybill root", now=now, lifetime=YEAR)
    stolen = AuthorityFolder.create_regional(tmp_path / "eu", root, "eu", now=now, lifetime=YEAR).folder
    for option, states in (("-addreject", ["good", "refused"]), ("-addtrust", ["good"])):
        purposes = [option, "serverAuth", option, "clientAuth"]
        made = subprocess.run(
            ["openssl", "x509", "-in", stolen / "authority.pem", *purposes, "-trustout"],
            capture_output=True,
            check=True,
        )
        file.write_bytes(root.root_pem + made.stdout)
        shown = CliRunner().invoke(app, ["show", str(file), "--json"])
        assert (shown.exit_code, [one["state"] for one in json.loads(shown.output)]) == (0, states)
    file.write_bytes(root.root_pem + b"-----BEGIN TRUSTED CERTIFICATE-----\nMIIAADACoA==\n-----END")
    damaged = CliRunner().invoke(app, ["show", str(file)])
    assert (damaged.exit_code, "trusted certificate cannot be read" in " ".join(damaged.output.split())) == (1, True)
