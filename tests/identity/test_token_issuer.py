"""A key is changed in steps, none of which leaves a token that nobody knows."""

import json
from pathlib import Path

import pytest

from waybill.identity.tokens import RETIRE, KeyStepRefused, TokenIssuer, read_claims

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
