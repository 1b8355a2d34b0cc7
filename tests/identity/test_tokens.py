"""Tokens are what a standard reader of them expects, and say what they were made to say."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from waybill.identity.pki_cli import app
from waybill.identity.sealing import Sealer, Unsealer, read_public_key
from waybill.identity.tokens import InvalidToken, TokenIssuer, TokenKey, discovery, public_keys, read_claims

KEY = TokenKey(ec.derive_private_key(7, ec.SECP256R1()))
OTHER = TokenKey(ec.derive_private_key(8, ec.SECP256R1()))
ISSUER = "https://127.0.0.1:1"
LOCKED = KEY.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def check(token: str, jwk: dict[str, str]) -> None:
    """As the standard says it, with the public part alone. Raises InvalidSignature."""
    x, y = (int.from_bytes(decoded(jwk[name])) for name in "xy")
    text, _, signature = token.rpartition(".")
    pair = decoded(signature)
    der = encode_dss_signature(int.from_bytes(pair[:32]), int.from_bytes(pair[32:]))
    ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key().verify(
        der, text.encode(), ec.ECDSA(hashes.SHA256())
    )


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True), st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_token_is_checked_by_the_published_key_and_by_no_other(role: str, now_s: int, life_s: int) -> None:
    token = KEY.token(role, issuer=ISSUER, now_s=now_s, life_s=life_s)
    check(token, KEY.public_jwk())
    with pytest.raises(InvalidSignature):
        check(token, OTHER.public_jwk())
    said = read_claims(token)
    assert (said.role, said.issuer, said.key_id, said.expires_s) == (role, ISSUER, KEY.key_id, now_s + life_s)


def test_a_token_has_every_claim_that_a_broker_asks_for() -> None:
    claims = json.loads(decoded(KEY.token("jobs", issuer=ISSUER, now_s=1000, life_s=60).split(".")[1]))
    assert claims == {"iss": ISSUER, "sub": "jobs", "aud": "pulsar", "iat": 940, "nbf": 940, "exp": 1060}


@pytest.mark.parametrize("role", ["", "a/b", "-a", "a b", "a\nb", "ü", "a" * 200])
def test_what_is_no_role_gets_no_token(role: str) -> None:
    with pytest.raises(InvalidToken):
        KEY.token(role, issuer=ISSUER, now_s=0, life_s=1)


@pytest.mark.parametrize("ends", ["1" + "0" * 400, "1e999", "NaN", "-Infinity", "null"])
def test_a_token_that_ends_at_no_moment_is_none(ends: str) -> None:
    head, claims = b'{"kid": "k"}', f'{{"sub": "jobs", "iss": "i", "exp": {ends}}}'.encode()
    with pytest.raises(InvalidToken):
        read_claims(".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (head, claims, b"")))


@pytest.mark.parametrize(
    "pem", [b"", b"-----BEGIN", KEY.to_pem()[:90], LOCKED], ids=["empty", "begun", "cut", "locked"]
)
def test_what_is_no_key_is_called_so(pem: bytes) -> None:
    with pytest.raises(InvalidToken, match="P-256"):
        TokenKey.from_pem(pem)


def test_an_issuer_says_where_its_keys_are() -> None:
    assert json.loads(discovery(ISSUER))["jwks_uri"] == f"{ISSUER}/keys.json"
    assert [key["kid"] for key in json.loads(public_keys([KEY, OTHER]))["keys"]] == [KEY.key_id, OTHER.key_id]


def known(issuer: TokenIssuer) -> set[str]:
    return {key["kid"] for key in json.loads((issuer.published / "keys.json").read_bytes())["keys"]}


def key_of(issuer: TokenIssuer, role: str) -> str:
    return read_claims(issuer.token_file(role).read_text()).key_id


def test_at_each_step_the_key_of_a_token_is_known(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, ISSUER)
    issuer.issue("jobs", now_s=0, life_s=100)
    first = key_of(issuer, "jobs")
    assert known(issuer) == {first}
    second = issuer.publish_new_key()
    assert known(issuer) == {first, second}
    issuer.issue("jobs", now_s=0, life_s=100)
    assert key_of(issuer, "jobs") == first
    assert issuer.sign_with_newest(now_s=0, life_s=100) == ["jobs"]
    assert key_of(issuer, "jobs") == second
    assert known(issuer) == {first, second}
    assert issuer.retire_former_keys() == [first]
    assert known(issuer) == {second}
    assert (issuer.retire_former_keys(), known(issuer)) == ([], {second})


def test_a_change_that_was_interrupted_goes_on_after_a_start(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, ISSUER)
    issuer.issue("jobs", now_s=0, life_s=100)
    second = issuer.publish_new_key()
    again = TokenIssuer(tmp_path)
    assert len(known(again)) == 2
    again.sign_with_newest(now_s=0, life_s=100)
    assert key_of(again, "jobs") == second


@pytest.mark.parametrize("damage", [b"a.b.c", b"\xff\xfe.b.c", b""])
def test_a_token_is_renewed_when_half_of_its_life_is_over(tmp_path: Path, damage: bytes) -> None:
    issuer = TokenIssuer(tmp_path, ISSUER)
    assert issuer.renew(["jobs", "operator"], now_s=0, life_s=100) == ["jobs", "operator"]
    assert issuer.renew(["jobs", "operator"], now_s=50, life_s=100) == []
    issuer.token_file("operator").write_bytes(damage)
    assert issuer.renew(["jobs", "operator"], now_s=50, life_s=100) == ["operator"]
    assert issuer.renew(["jobs", "operator"], now_s=51, life_s=100) == ["jobs"]


def test_only_the_owner_reads_keys_and_tokens(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "access", ISSUER)
    secret = [issuer.issue("jobs", now_s=0, life_s=1), *(tmp_path / "access" / "keys").glob("*.pem")]
    assert {file.stat().st_mode & 0o077 for file in secret} == {0}


ISSUER_OF_KEY_COMMANDS = "https://keys.example:8443"


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


def test_a_token_names_its_role_and_a_new_key_signs_it_after_its_three_steps(tmp_path: Path) -> None:
    folder = ("--folder", tmp_path)
    made = run("token", "gateway-eu", "--issuer", ISSUER_OF_KEY_COMMANDS, *folder, "--json")
    file = Path(json.loads(made.output)["file"])
    first = read_claims(file.read_text())
    assert (first.role, first.issuer) == ("gateway-eu", ISSUER_OF_KEY_COMMANDS)
    published = run("token-key", "publish", *folder).output
    assert read_claims(file.read_text()).key_id == first.key_id
    assert "gateway-eu" in run("token-key", "sign", *folder).output
    assert read_claims(file.read_text()).key_id in published
    assert first.key_id in run("token-key", "retire", *folder).output


def test_a_step_out_of_order_is_refused_and_loses_no_key(tmp_path: Path) -> None:
    run("token", "jobs", "--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    assert run("token-key", "publish", "--folder", tmp_path).exit_code == 0
    keys = sorted((tmp_path / "keys").iterdir())
    for step in ("publish", "retire"):
        refused = run("token-key", step, "--folder", tmp_path)
        assert (refused.exit_code, "token-key sign" in " ".join(refused.output.split())) == (1, True)
    assert sorted((tmp_path / "keys").iterdir()) == keys


def test_the_status_names_keys_and_tokens_and_ends_with_1_for_a_token_that_has_ended(tmp_path: Path) -> None:
    nothing = run("token-key", "status", "--folder", tmp_path / "none")
    assert (nothing.exit_code, "waybill pki token ROLE" in nothing.output) == (1, True)
    assert not (tmp_path / "none").exists()
    run("token", "jobs", "--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    good = run("token-key", "status", "--folder", tmp_path)
    assert (good.exit_code, "signs" in good.output, "jobs  is good" in good.output) == (0, True, True)
    TokenIssuer(tmp_path).issue("operator", now_s=940, life_s=60)
    ended = run("token-key", "status", "--folder", tmp_path)
    assert (ended.exit_code, "operator  ended at 1970-01-01T00:16:40Z" in ended.output) == (1, True)


@pytest.mark.parametrize(
    "issuer", ["https://keys.example:8444", "http://keys.example:8443", "keys.example", f"{ISSUER_OF_KEY_COMMANDS}/"]
)
def test_a_folder_keeps_its_issuer_and_none_is_reached_in_plain_text(tmp_path: Path, issuer: str) -> None:
    run("token", "jobs", "--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert run("token", "jobs", "--issuer", issuer, "--folder", tmp_path).exit_code == 1
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    is_right = issuer == "https://keys.example:8444"
    assert (run("token", "jobs", "--issuer", issuer, "--folder", tmp_path / "new").exit_code == 0) == is_right
