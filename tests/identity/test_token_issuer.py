"""A key is changed in steps, none of which leaves a token that nobody knows."""

import json
from pathlib import Path

import pytest

from identity.token_issuer import TokenIssuer
from identity.tokens import InvalidToken, read_claims

ISSUER = "https://127.0.0.1:1"


def known(issuer: TokenIssuer) -> set[str]:
    """The ids of the keys that brokers are served."""
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
    assert issuer.sign_with_newest(issuer.roles, now_s=0, life_s=100) == ["jobs"]
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
    again.sign_with_newest(again.roles, now_s=0, life_s=100)
    assert key_of(again, "jobs") == second


@pytest.mark.parametrize("damage", [b"a.b.c", b"\xff\xfe.b.c", b""])
def test_a_token_is_renewed_when_half_of_its_life_is_over(tmp_path: Path, damage: bytes) -> None:
    issuer = TokenIssuer(tmp_path, ISSUER)
    assert issuer.renew(["jobs", "operator"], now_s=0, life_s=100) == ["jobs", "operator"]
    assert issuer.renew(["jobs", "operator"], now_s=50, life_s=100) == []
    issuer.token_file("operator").write_bytes(damage)
    assert issuer.renew(["jobs", "operator"], now_s=50, life_s=100) == ["operator"]
    assert issuer.renew(["jobs", "operator"], now_s=51, life_s=100) == ["jobs"]


def test_a_token_of_another_issuer_is_renewed(tmp_path: Path) -> None:
    TokenIssuer(tmp_path, ISSUER).issue("jobs", now_s=0, life_s=100)
    assert TokenIssuer(tmp_path, "https://127.0.0.1:2").renew(["jobs"], now_s=0, life_s=100) == ["jobs"]


def test_only_the_owner_reads_keys_and_tokens(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "access", ISSUER)
    secret = [issuer.issue("jobs", now_s=0, life_s=1), *(tmp_path / "access" / "keys").glob("*.pem")]
    assert {file.stat().st_mode & 0o077 for file in secret} == {0}


def test_who_was_killed_before_the_first_key_was_named_signs_with_it(tmp_path: Path) -> None:
    TokenIssuer(tmp_path, ISSUER)
    (tmp_path / "keys" / "signer").unlink()
    TokenIssuer(tmp_path, ISSUER).issue("jobs", now_s=0, life_s=1)


@pytest.mark.parametrize(("name", "damage"), [("signer", b"\xffanother"), ("0001.pem", b"-----BEGIN")])
def test_a_damaged_file_of_keys_is_named(tmp_path: Path, name: str, damage: bytes) -> None:
    TokenIssuer(tmp_path, ISSUER)
    (tmp_path / "keys" / name).write_bytes(damage)
    with pytest.raises(InvalidToken, match=name):
        TokenIssuer(tmp_path, ISSUER).issue("jobs", now_s=0, life_s=1)
