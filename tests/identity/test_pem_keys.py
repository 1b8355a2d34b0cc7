"""What is no key in PEM is one error for everybody who reads one, whatever OpenSSL calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets.identity import OTHER_KIND
from waybill.identity.authority import KeyPair
from waybill.identity.errors import KeyRefused, OperatorKeyRefused, SealingKeyError
from waybill.identity.pem_keys import private_key_of, public_key_of
from waybill.identity.sealing import read_public_key
from waybill.identity.signatures import read_operator_key
from waybill.identity.tokens import InvalidToken, TokenKey

WRONG = [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", OTHER_KIND, b"\xff" * 100]


@pytest.mark.parametrize("pem", WRONG)
def test_each_reader_has_its_own_typed_error(pem: bytes, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(pem)
    for read in (private_key_of, public_key_of):
        with pytest.raises(ValueError, match="in PEM"):
            read(pem)
    with pytest.raises(KeyRefused):
        KeyPair.from_pem(pem)
    with pytest.raises(InvalidToken):
        TokenKey.from_pem(pem)
    with pytest.raises(OperatorKeyRefused, match="key: "):
        read_operator_key(file)
    with pytest.raises(SealingKeyError, match="key: "):
        read_public_key(file)
