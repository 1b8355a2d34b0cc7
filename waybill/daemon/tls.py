"""TLS: certificates and key pairs from files, loaded without asking a terminal."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import model_validator

from waybill.settings import Settings, file_fault, read_file


class TlsSettings(Settings):
    """TLS towards a server, mutual if there is a certificate."""

    ca: Path
    """Certificates of the authorities that may have signed the server's certificate (PEM)."""
    certificate: Path | None = None
    """The client's own certificate (PEM)."""
    key: Path | None = None
    """The private key of that certificate (PEM)."""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: set both or neither")
        return self


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Raises OSError (which includes ssl.SSLError); ValueError for a key with a passphrase."""
    return _context(tls.ca, tls.certificate, tls.key)


def _context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    # Said here, because what Python allows by default is its builder's choice.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        load_key_pair(context, certificate, key)
    return context


def unusable_tls_files(table: str, tls: TlsSettings | None) -> Iterator[str]:
    """A line for each file that cannot be used; `table` names the settings."""
    if tls is not None:
        for name, fault in certificate_faults(tls.ca, tls.certificate, tls.key):
            yield f"{table}.{name}: {fault}" if name else f"{table}: {fault}"


def certificate_faults(ca: Path | None, certificate: Path | None, key: Path | None) -> Iterator[tuple[str, str]]:
    """Faults of PEM files: the file (`ca`, `certificate`, `key`; "": all together), and the reason."""
    unreadable = False
    for name, path in {"ca": ca, "certificate": certificate, "key": key}.items():
        try:
            if path is not None:
                read_file(path)
        except OSError as error:
            unreadable = True
            yield name, f"{path} cannot be read: {file_fault(error)}"
    if not unreadable:
        try:
            _context(ca, certificate, key)
        except (OSError, ValueError) as error:
            yield "", f"certificates cannot be loaded: {error}"


def load_key_pair(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None) -> None:
    """Load a context's own certificate and key (PEM). Raises OSError; ValueError for a key with a passphrase."""
    context.load_cert_chain(certificate, key, password=_no_passphrase)


def check_key_pair(certificate: Path | str, key: Path | str | None) -> None:
    """Raises what `load_key_pair` raises: for clients that load the files themselves, and would ask a terminal."""
    load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key)


def _no_passphrase() -> str:
    """Without it OpenSSL would ask a terminal and wait."""
    raise ValueError("the key has a passphrase: use a key without one")
