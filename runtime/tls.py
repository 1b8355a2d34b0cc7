"""Key pairs for TLS, loaded without ever asking a terminal."""

import ssl
from pathlib import Path

__all__ = ["check_key_pair", "load_key_pair"]


def load_key_pair(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None) -> None:
    """Gives a context its own certificate and key (PEM). Raises OSError; ValueError for a key with a passphrase."""
    context.load_cert_chain(certificate, key, password=_no_passphrase)


def check_key_pair(certificate: Path | str, key: Path | str | None) -> None:
    """Raises what `load_key_pair` raises: for clients that load the files themselves, and would ask a terminal."""
    load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key)


def _no_passphrase() -> str:
    """OpenSSL would ask a terminal, and wait for ever."""
    raise ValueError("the key has a passphrase, and nobody is there to type it: give a key without one")
