"""What a client or server needs to be believed: its certificate, its key, and the root that it trusts, as PEM files."""

from __future__ import annotations

from pathlib import Path

from identity.requests import KeyPair
from runtime.durable_file import replace_durably
from runtime.tls import TlsSettings

__all__ = ["credentials_in", "write_credentials"]


def credentials_in(folder: Path) -> TlsSettings:
    """Where the files of a folder are: `ca.pem`, `certificate.pem`, `key.pem`."""
    return TlsSettings(ca=folder / "ca.pem", certificate=folder / "certificate.pem", key=folder / "key.pem")


def write_credentials(folder: Path, *, root_pem: bytes, chain_pem: bytes, key: KeyPair) -> TlsSettings:
    """Write or replace the files of a folder, the key with mode 0600, the certificate last. Raises OSError.

    A renewal that keeps its key changes one file, and so at once; with a new key a reader between the two writes finds
    a pair that does not match, and reads again.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = credentials_in(folder)
    assert files.key is not None
    assert files.certificate is not None
    # With its mode from the first byte on, not changed afterwards.
    replace_durably(files.key, key.private_pem(), mode=0o600)
    replace_durably(files.ca, root_pem)
    replace_durably(files.certificate, chain_pem)
    return files
