"""Keys of tokens and of sealed batches, by command."""

import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner, Result

from identity import Sealer, Unsealer, read_public_key
from identity.pki_cli import app
from identity.tokens import read_claims

ISSUER = "https://keys.example:8443"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_what_is_sealed_with_the_public_key_opens_with_the_private_one(tmp_path: Path) -> None:
    assert run("sealing", "acme", "--out", tmp_path).exit_code == 0
    sealer = Sealer(read_public_key(tmp_path / "acme.pub"), X25519PrivateKey.generate(), "acme", "eu")
    assert Unsealer.of_folder(tmp_path).unseal(sealer.seal(b"batch"), "acme", "eu") == b"batch"
    assert (tmp_path / "acme.key").stat().st_mode & 0o777 == 0o600


def test_a_key_of_sealed_batches_is_never_replaced(tmp_path: Path) -> None:
    run("sealing", "acme", "--out", tmp_path)
    before = (tmp_path / "acme.key").read_bytes()
    again = run("sealing", "acme", "--out", tmp_path)
    assert again.exit_code == 1
    assert "never replaced" in " ".join(again.output.split())
    assert (tmp_path / "acme.key").read_bytes() == before


def test_a_key_that_was_moved_away_gets_no_second_one_beside_its_public_one(tmp_path: Path) -> None:
    run("sealing", "acme", "--out", tmp_path)
    (tmp_path / "acme.key").rename(tmp_path / "centre.key")
    before = (tmp_path / "acme.pub").read_bytes()
    again = run("sealing", "acme", "--out", tmp_path)
    assert (again.exit_code, "acme.pub is there already" in " ".join(again.output.split())) == (1, True)
    assert not (tmp_path / "acme.key").exists()
    assert (tmp_path / "acme.pub").read_bytes() == before


def test_what_a_killed_command_left_is_made_a_pair(tmp_path: Path) -> None:
    run("sealing", "acme", "--out", tmp_path)
    private, public = tmp_path / "acme.key", tmp_path / "acme.pub"
    before = private.read_bytes(), public.read_bytes()
    public.unlink()
    assert run("sealing", "acme", "--out", tmp_path).exit_code == 0
    assert (private.read_bytes(), public.read_bytes()) == before


@pytest.mark.parametrize("name", ["../up", "", "a b", "x" * 64])
def test_a_name_that_no_tenant_has_gets_no_key(tmp_path: Path, name: str) -> None:
    assert run("sealing", name, "--out", tmp_path).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_token_names_its_role_and_a_new_key_signs_it_after_its_three_steps(tmp_path: Path) -> None:
    common = ("--issuer", ISSUER, "--folder", tmp_path, "--json")
    file = Path(json.loads(run("token", "gateway-eu", *common).output)["file"])
    first = read_claims(file.read_text())
    assert (first.role, first.issuer) == ("gateway-eu", ISSUER)
    (published,) = json.loads(run("token-key", "publish", *common).output)["done"]
    assert read_claims(file.read_text()).key_id == first.key_id
    assert json.loads(run("token-key", "sign", "--early", *common).output)["done"] == ["gateway-eu"]
    assert read_claims(file.read_text()).key_id == published
    assert json.loads(run("token-key", "retire", "--early", *common).output)["done"] == [first.key_id]


def test_a_step_out_of_order_is_refused_and_loses_no_key(tmp_path: Path) -> None:
    common = ("--issuer", ISSUER, "--folder", tmp_path)
    run("token", "jobs", *common)
    assert run("token-key", "publish", *common).exit_code == 0
    keys = sorted((tmp_path / "keys").iterdir())
    for step in ("publish", "retire"):
        refused = run("token-key", step, *common)
        assert (refused.exit_code, "token-key sign" in " ".join(refused.output.split())) == (1, True)
    assert sorted((tmp_path / "keys").iterdir()) == keys
    assert run("token-key", "sign", *common, "--early").exit_code == 0
    assert run("token-key", "retire", *common, "--early").exit_code == 0


def test_a_step_that_is_too_early_is_refused_unless_it_is_said(tmp_path: Path) -> None:
    common = ("--issuer", ISSUER, "--folder", tmp_path)
    run("token", "jobs", *common)

    def step(name: str, waited: Path, wait_s: float) -> None:
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        written_s = waited.stat().st_mtime
        # also of a clock that was set back since
        for age_s in (0, wait_s - 60, -3600):
            os.utime(waited, (written_s - age_s, written_s - age_s))
            refused = run("token-key", name, *common)
            assert (refused.exit_code, "too early" in refused.output) == (1, True), refused.output
        assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
        os.utime(waited, (written_s - wait_s, written_s - wait_s))
        assert run("token-key", name, *common).exit_code == 0

    assert run("token-key", "publish", *common).exit_code == 0
    step("sign", tmp_path / "keys" / "0002.pem", 600)
    step("retire", tmp_path / "keys" / "signer", 7 * 86_400)
    # Where nothing changes nothing is to be waited for.
    assert [run("token-key", name, *common).exit_code for name in ("sign", "retire")] == [0, 0]


@pytest.mark.parametrize("issuer", ["https://keys.example:8444", "http://keys.example:8443", "keys.example"])
def test_a_folder_keeps_its_issuer_and_none_is_reached_in_plain_text(tmp_path: Path, issuer: str) -> None:
    run("token", "jobs", "--issuer", ISSUER, "--folder", tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for command in (("token", "jobs"), ("token-key", "publish"), ("token-key", "sign")):
        assert run(*command, "--issuer", issuer, "--folder", tmp_path).exit_code == 1
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    changed = run("token", "jobs", "--issuer", issuer, "--folder", tmp_path, "--new-issuer")
    assert changed.exit_code == (0 if issuer.startswith("https://") else 1)


def test_a_role_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    refused = run("token", "../up", "--issuer", ISSUER, "--folder", tmp_path)
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output
