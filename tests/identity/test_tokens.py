"""Tokens are what a standard reader of them expects, and say what they were made to say."""

import base64
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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

from geo.replication import Topology
from waybill.identity.pki_cli import app
from waybill.identity.sealing import Sealer, Unsealer, read_public_key
from waybill.identity.token_cli import topology_roles
from waybill.identity.tokens import (
    RETIRE,
    InvalidToken,
    KeyStepRefused,
    TokenIssuer,
    TokenKey,
    check_keys,
    discovery,
    read_claims,
)
from waybill.settings import load

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


@pytest.mark.parametrize("ends", ["1" + "0" * 400, "1e999", "NaN", "-Infinity", '"9"', "true", "null"])
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
    assert [key["kid"] for key in json.loads(check_keys([KEY, OTHER]))["keys"]] == [KEY.key_id, OTHER.key_id]


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
    assert read_claims(issuer.newest_token("jobs", now_s=0, life_s=100)).key_id == second
    issuer.issue("jobs", now_s=0, life_s=100)
    assert key_of(issuer, "jobs") == first
    assert issuer.sign_with_newest({"jobs": 100}, now_s=0) == ["jobs"]
    assert key_of(issuer, "jobs") == second
    assert known(issuer) == {first, second}
    assert issuer.retire_former_keys() == [first]
    assert known(issuer) == {second}


def test_a_change_that_was_interrupted_goes_on_after_a_start(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, ISSUER)
    issuer.issue("jobs", now_s=0, life_s=100)
    second = issuer.publish_new_key()
    again = TokenIssuer(tmp_path, ISSUER)
    assert len(known(again)) == 2
    again.sign_with_newest({"jobs": 100}, now_s=0)
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


def changed(folder: Path, *lives_s: float) -> TokenIssuer:
    """A folder whose first key signed tokens of these lives at moment 0, one after the other; the second signs now."""
    issuer = TokenIssuer(folder, ISSUER)
    for life_s in lives_s:
        issuer.issue("jobs", now_s=0, life_s=life_s)
    issuer.publish_new_key()
    issuer.sign_with_newest({"jobs": 100}, now_s=10)
    return issuer


@pytest.mark.parametrize("lives_s", [(5000, 100), (100, 5000)])
def test_a_former_key_waits_for_the_token_that_it_signed_for_the_longest(
    tmp_path: Path, lives_s: tuple[float, float]
) -> None:
    issuer = changed(tmp_path, *lives_s)
    with pytest.raises(KeyStepRefused, match=r"too early.* until 1970-01-01T01:23:20Z"):
        issuer.check_wait(RETIRE, 4999)
    issuer.check_wait(RETIRE, 5000)


def test_no_step_is_done_where_there_is_nothing_to_do(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path, ISSUER)
    with pytest.raises(KeyStepRefused, match="publish first"):
        issuer.sign_with_newest({}, now_s=0)
    with pytest.raises(KeyStepRefused, match="no former key"):
        issuer.retire_former_keys()
    issuer.publish_new_key()
    issuer.sign_with_newest({}, now_s=0)
    # Killed before the tokens were written, it is given again.
    assert issuer.sign_with_newest({"jobs": 100}, now_s=0) == ["jobs"]
    assert len(issuer.retire_former_keys()) == 1
    assert sorted(file.name for file in (tmp_path / "keys").iterdir()) == ["0002.pem", "0002.until", "lock", "signer"]


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


def test_what_root_writes_into_a_folder_belongs_to_the_folders_owner() -> None:
    """Timers of another user renew tokens: a key of root's would stop them."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.chown(folder, 65534, 65534)
        common = ("--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", folder)
        for command in (
            ("token", "gateway-eu"),
            ("token-key", "publish"),
            ("token-key", "sign", "--early"),
            ("token-key", "retire", "--early"),
        ):
            done = run(*command, *common)
            assert done.exit_code == 0, done.output
            assert {(file.stat().st_uid, file.stat().st_gid) for file in folder.rglob("*")} == {(65534, 65534)}
            assert (os.geteuid(), os.getegid()) == (0, 0)


def test_a_token_names_its_role_and_a_new_key_signs_it_after_its_three_steps(tmp_path: Path) -> None:
    common = ("--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path, "--json")
    file = Path(json.loads(run("token", "gateway-eu", *common).output)["file"])
    first = read_claims(file.read_text())
    assert (first.role, first.issuer) == ("gateway-eu", ISSUER_OF_KEY_COMMANDS)
    (published,) = json.loads(run("token-key", "publish", *common).output)["done"]
    assert read_claims(file.read_text()).key_id == first.key_id
    assert json.loads(run("token-key", "sign", "--early", *common).output)["done"] == ["gateway-eu"]
    assert read_claims(file.read_text()).key_id == published
    assert json.loads(run("token-key", "retire", "--early", *common).output)["done"] == [first.key_id]


def test_a_step_out_of_order_is_refused_and_loses_no_key(tmp_path: Path) -> None:
    common = ("--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    run("token", "jobs", *common)
    assert run("token-key", "publish", *common).exit_code == 0
    keys = sorted((tmp_path / "keys").iterdir())
    for step in ("publish", "retire"):
        refused = run("token-key", step, *common)
        assert (refused.exit_code, "token-key sign" in " ".join(refused.output.split())) == (1, True)
    assert sorted((tmp_path / "keys").iterdir()) == keys
    assert run("token-key", "sign", *common, "--early").exit_code == 0
    assert run("token-key", "retire", *common, "--early").exit_code == 0


def files_of(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def status(folder: Path) -> Any:
    return json.loads(run("token-key", "status", "--folder", folder, "--json").output)


def test_the_status_of_a_change_of_keys_writes_nothing(tmp_path: Path) -> None:
    nothing = run("token-key", "status", "--folder", tmp_path)
    assert (nothing.exit_code, "waybill pki token ROLE makes the first one" in nothing.output) == (1, True)
    assert files_of(tmp_path) == {}
    common = ("--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    run("token", "jobs", *common, "--days", 1)
    assert status(tmp_path)["next"]["step"] == "publish"
    # Without an issuer, which the folder says.
    (published,) = json.loads(run("token-key", "publish", "--folder", tmp_path, "--json").output)["done"]
    before, found = files_of(tmp_path), status(tmp_path)
    assert [(one["use"], one["tokens_known"]) for one in found["keys"]] == [("signs", True), ("waits", True)]
    assert (found["issuer"], found["keys"][1]["id"], found["next"]["step"]) == (
        ISSUER_OF_KEY_COMMANDS,
        published,
        "sign",
    )
    shown = run("token-key", "status", "--folder", tmp_path).output
    for part in (published, found["keys"][0]["tokens_until"], found["next"]["from"], found["next"]["command"]):
        assert part in shown
    assert files_of(tmp_path) == before


def test_a_token_that_ends_soon_has_ended_or_is_missing_is_named_and_ends_with_1(tmp_path: Path) -> None:
    common = ("--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    topology = tmp_path / "topology.toml"
    topology.write_text("[roles.jobs]\n[roles.operator]\n")
    for role in ("jobs", "operator"):
        run("token", role, *common, "--days", 7)

    def look(*options: object) -> tuple[int, dict[str, str]]:
        shown = run("token-key", "status", "--folder", tmp_path, "--json", *options)
        return shown.exit_code, {one["role"]: one["state"] for one in json.loads(shown.output)["tokens"]}

    good = {"jobs": "good", "operator": "good"}
    assert (look(), look("--within", 6.9), look("--topology", topology)) == ((0, good),) * 3
    assert look("--within", 7) == (1, {"jobs": "ends soon", "operator": "ends soon"})
    topology.write_text("[roles.jobs]\n[roles.gateway-eu]\n")
    assert look("--topology", topology) == (1, good | {"gateway-eu": "missing"})
    (tmp_path / "tokens" / "operator.token").write_text("none")
    assert look() == (1, good | {"operator": "missing"})
    long_ago = TokenKey(ec.generate_private_key(ec.SECP256R1())).token(
        "operator", issuer=ISSUER_OF_KEY_COMMANDS, now_s=0, life_s=60
    )
    (tmp_path / "tokens" / "operator.token").write_text(long_ago)
    assert look("--within", 0) == (1, good | {"operator": "ended"})
    said = run("token-key", "status", "--folder", tmp_path).output
    assert "token   operator, good for 0 days, until 1970-01-01T00:01:00Z" in said
    assert "HAS ENDED" in said


def test_a_role_that_the_topology_does_not_have_gets_no_token(tmp_path: Path) -> None:
    topology = Path("deploy/local/topology.toml")
    assert topology_roles(topology) == sorted(
        {*load(Topology, topology).roles_by_name(), "replication-eu", "replication-us", "replication-hq"}
    )
    common = ("--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path / "tokens", "--topology", topology)
    wrong = run("token", "gatway-eu", *common)
    assert (wrong.exit_code, "did you mean gateway-eu?" in wrong.output) == (1, True), wrong.output
    assert not (tmp_path / "tokens").exists()
    assert run("token", "gateway-eu", *common).exit_code == 0
    for text in ("x = 1", "[", "roles = 1"):
        (tmp_path / "none.toml").write_text(text)
        refused = run(
            "token",
            "jobs",
            "--issuer",
            ISSUER_OF_KEY_COMMANDS,
            "--folder",
            tmp_path,
            "--topology",
            tmp_path / "none.toml",
        )
        assert (refused.exit_code, "none.toml" in refused.output) == (1, True), refused.output


@pytest.mark.parametrize(
    "issuer", ["https://keys.example:8444", "http://keys.example:8443", "keys.example", f"{ISSUER_OF_KEY_COMMANDS}/"]
)
def test_a_folder_keeps_its_issuer_and_none_is_reached_in_plain_text(tmp_path: Path, issuer: str) -> None:
    run("token", "jobs", "--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for command in (("token", "jobs"), ("token-key", "publish"), ("token-key", "sign")):
        assert run(*command, "--issuer", issuer, "--folder", tmp_path).exit_code == 1
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    changed = run("token", "jobs", "--issuer", issuer, "--folder", tmp_path, "--new-issuer")
    assert changed.exit_code == (0 if issuer == "https://keys.example:8444" else 1)


@pytest.mark.parametrize("damage", ["", "{", "[]", None])
def test_a_folder_whose_published_issuer_cannot_be_read_takes_no_other_one(tmp_path: Path, damage: str | None) -> None:
    run("token", "jobs", "--issuer", ISSUER_OF_KEY_COMMANDS, "--folder", tmp_path)
    file, other = tmp_path / "published/.well-known/openid-configuration", "https://other.example"
    file.unlink() if damage is None else file.write_text(damage)
    refused = run("token", "jobs", "--issuer", other, "--folder", tmp_path)
    assert (refused.exit_code, "missing or damaged" in refused.output) == (1, True), refused.output
    assert run("token", "jobs", "--issuer", other, "--folder", tmp_path, "--new-issuer").exit_code == 0
