"""Keys of tokens and of sealed batches, by command."""

import json
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
    assert json.loads(run("token-key", "sign", *common).output)["done"] == ["gateway-eu"]
    assert read_claims(file.read_text()).key_id == published
    assert json.loads(run("token-key", "retire", *common).output)["done"] == [first.key_id]


def test_a_role_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    refused = run("token", "../up", "--issuer", ISSUER, "--folder", tmp_path)
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output
