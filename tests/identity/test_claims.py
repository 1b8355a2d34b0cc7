"""One-time tokens: a hash that Mosquitto takes, and nothing in it that enrols anybody."""

import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from waybill.identity.claims import (
    broker_password,
    check_factory_serial,
    is_broker_password,
    make_token,
    password_file,
    token_id,
    token_user,
)
from waybill.identity.command_session import EXIT_REFUSED, CommandFailed
from waybill.identity.errors import NameRefused
from waybill.identity.registry import Claim
from waybill.identity.token_files import claim_option

_PASSWD = shutil.which("mosquitto_passwd")


def test_a_token_is_256_random_bits_and_its_hash_is_that_of_its_text() -> None:
    token, other = make_token(), make_token()
    text = token.text.get_secret_value()
    assert text != other.text.get_secret_value()
    assert token_user(text) == f"claim@{token.id}"
    assert is_broker_password(text, token.password_hash)
    assert not is_broker_password(other.text.get_secret_value(), token.password_hash)
    assert text not in repr(token), "a log line must not show it"
    assert token.id == token_id(token.password_hash), "nobody has another hash by this name"


@pytest.mark.parametrize("text", ["", "token-0123456789abcdef", "token-" + "." * 43, "x" * 67])
def test_what_is_no_token_has_no_user_name(text: str) -> None:
    with pytest.raises(NameRefused, match="not an enrolment token"):
        token_user(text)


def test_a_factory_serial_cannot_be_the_name_of_a_token() -> None:
    check_factory_serial("WB-2027-000123")
    for refused in ("token-0123456789abcdef", "a/b", "a:b", "", "x" * 59):
        with pytest.raises(NameRefused):
            check_factory_serial(refused)


@pytest.mark.skipif(_PASSWD is None, reason="mosquitto_passwd is not installed")
def test_the_hash_is_that_of_mosquitto_passwd_of_the_same_salt(tmp_path: Path) -> None:
    assert _PASSWD is not None
    file = tmp_path / "passwords"
    subprocess.run([_PASSWD, "-c", "-b", file, "claim@T1", "secret"], check=True, timeout=20, capture_output=True)
    name, _, theirs = file.read_text().strip().partition(":")
    assert name == "claim@T1"
    assert is_broker_password("secret", theirs)
    assert not is_broker_password("Secret", theirs)
    assert theirs.count("$") == broker_password("secret", b"twelve bytes").count("$")


@given(st.text(max_size=40), st.binary(min_size=12, max_size=12))
@settings(max_examples=examples(30), deadline=None)
def test_a_password_is_known_again_by_its_hash_and_no_other_is(text: str, salt: bytes) -> None:
    hashed = broker_password(text, salt)
    assert is_broker_password(text, hashed)
    assert not is_broker_password(text + "x", hashed)


def test_a_password_file_is_sorted_and_one_line_for_each_user() -> None:
    assert password_file({"claim@b": "$7$b", "access@eu": "$7$a"}) == b"access@eu:$7$a\nclaim@b:$7$b\n"


@pytest.mark.parametrize("head", ["9999999$c2FsdA==", "0$c2FsdA==", "101$====", "101$c2Fsd", "101$"])
def test_a_hash_that_takes_long_or_is_none_is_nobody_s(head: str) -> None:
    assert not is_broker_password("text", f"$7${head}${'A' * 86}==")


def claim_of(file: Path | None, factory: str | None, *, by_hand: bool = False, days: float = 7) -> Claim | None:
    with claim_option(file, factory, by_hand=by_hand, days=days) as claim:
        return claim


@pytest.mark.parametrize("days", [1e6, 1e12])
def test_a_time_that_no_entry_may_have_is_refused_before_a_token_is_written(tmp_path: Path, days: float) -> None:
    with pytest.raises(typer.BadParameter):
        claim_of(tmp_path / "token", None, days=days)
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize(
    ("ended", "stays"),
    [
        (typer.BadParameter("wrong"), False),
        (CommandFailed(78), False),
        (CommandFailed(1), False),
        (typer.Exit(EXIT_REFUSED), False),
        (typer.Exit(0), True),
        (typer.Exit(1), True),
        (typer.Exit(5), True),
    ],
)
def test_the_token_of_a_refused_command_does_not_stay(
    tmp_path: Path, ended: typer.Exit | typer.BadParameter, stays: bool
) -> None:
    file = tmp_path / "token"
    with pytest.raises(type(ended)), claim_option(file, None, by_hand=False, days=7):
        raise ended
    assert file.exists() is stays


def test_a_refused_command_leaves_what_another_one_put_in_the_place_of_its_token(tmp_path: Path) -> None:
    file = tmp_path / "token"

    def refused_meanwhile() -> None:
        file.unlink()
        assert claim_of(file, None)
        raise typer.Exit(3)

    with pytest.raises(typer.Exit), claim_option(file, None, by_hand=False, days=7):
        refused_meanwhile()
    assert file.exists()
