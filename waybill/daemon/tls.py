"""TLS: certificates and key pairs from files, loaded without ever asking a terminal."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import model_validator

from waybill.settings import Settings, file_fault, read_file


class TlsSettings(Settings):
    """TLS towards a server, mutual where a certificate is given."""

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
    """What a connection with these files needs. Raises OSError (which ssl.SSLError is); ValueError for a passphrase."""
    return _context(tls.ca, tls.certificate, tls.key)


def _context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    # Said here, because what Python allows by default is its builder's choice.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        load_key_pair(context, certificate, key)
    return context


def unusable_tls_files(table: str, tls: TlsSettings | None) -> Iterator[str]:
    """The files that cannot be used, one line each; `table` names the settings."""
    if tls is not None:
        for name, fault in certificate_faults(tls.ca, tls.certificate, tls.key):
            yield f"{table}.{name}: {fault}" if name else f"{table}: {fault}"


def certificate_faults(ca: Path | None, certificate: Path | None, key: Path | None) -> Iterator[tuple[str, str]]:
    """What is wrong with PEM files: which (`ca`, `certificate`, `key`; "": all together), and why."""
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
    """Gives a context its own certificate and key (PEM). Raises OSError; ValueError for a key with a passphrase."""
    context.load_cert_chain(certificate, key, password=_no_passphrase)


def check_key_pair(certificate: Path | str, key: Path | str | None) -> None:
    """Raises what `load_key_pair` raises: for clients that load the files themselves, and would ask a terminal."""
    load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key)


def _no_passphrase() -> str:
    """OpenSSL would ask a terminal, and wait for ever."""
    raise ValueError("the key has a passphrase: use a key without one")
