"""What a client or server needs to be believed: its certificate, its key, and the root that it trusts, as PEM files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waybill.daemon.durable_file import replace_durably
from waybill.daemon.tls import TlsSettings
from waybill.identity.authority import MAX_PEM_BYTES
from waybill.identity.errors import CredentialsRefused
from waybill.identity.requests import KeyPair
from waybill.settings import file_fault

__all__ = ["credentials_in", "opened_folder", "read_in", "write_credentials"]


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


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """A folder's descriptor; its own last part is no link. Raises CredentialsRefused, OSError."""
    if folder.is_symlink():
        raise CredentialsRefused(folder, "it is a link: name the folder itself")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_in(folder: Path, descriptor: int, name: str) -> bytes:
    """A file of a folder that was opened: no link is followed and nothing waited for. Raises CredentialsRefused."""
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise CredentialsRefused(folder, f"{name}: it is no file: there is nothing to renew")
            if len(content := file.read(MAX_PEM_BYTES + 1)) > MAX_PEM_BYTES:
                raise CredentialsRefused(folder, f"{name}: it has more than {MAX_PEM_BYTES} bytes")
            return content
    except FileNotFoundError as error:
        raise CredentialsRefused(folder, f"has no {name}: there is nothing to renew") from error
    except OSError as error:
        why = "it is a link: put the file itself there" if error.errno == errno.ELOOP else file_fault(error)
        raise CredentialsRefused(folder, f"{name}: {why}") from error
