"""Who we are towards Pulsar: tokens that are replaced, files that cannot be used, and clients that are opened."""

import subprocess
import sys
from pathlib import Path

import pulsar
import pytest
from pydantic import SecretStr, ValidationError

from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, PulsarToken, open_pulsar_client


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"two words", b"line\r\nX-Header: 1", None])
def test_a_token_file_that_is_being_replaced_leaves_the_token_before_it(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"first")
    token = PulsarToken(PulsarAccess(token_file=file))
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert token() == "first"
    with pytest.raises(PulsarAccessError, match="token file"):
        PulsarToken(PulsarAccess(token_file=file))
    file.write_bytes(b"second\n")
    assert token() == "second"


@pytest.mark.parametrize("token", [" ", "two words", "line\n"])
def test_what_is_not_a_valid_token_is_refused_before_anybody_sees_it(token: str) -> None:
    with pytest.raises(PulsarAccessError, match="not a valid token"):
        PulsarToken(PulsarAccess(token=SecretStr(token)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token": "a", "token_file": "b"}, "token or token_file, not both"),
        ({"tls_key": "k"}, "tls_certificate and tls_key belong together"),
        ({"tls_certificate": "k"}, "belong together"),
        ({"tokn": "a"}, "tokn"),
    ],
)
def test_fields_that_do_not_fit_are_named(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PulsarAccess.model_validate(fields)


def test_a_client_is_opened_with_no_broker_there_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    client = open_pulsar_client("pulsar://127.0.0.1:1", PulsarAccess(), timeout_s=1, connect_timeout_s=0.2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/default/x")
    client.close()
    assert capfd.readouterr() == ("", "")


def test_only_who_opens_a_client_needs_its_library() -> None:
    program = "import sys, waybill.pulsar.pulsar_client; sys.exit('pulsar' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
