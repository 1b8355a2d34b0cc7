"""The file of one one-time token: its mode says whether the command that made it may remove it again.

Two commands may write into one folder. Who finds a token there takes it, and publishes it: from then on its file is
read-only, and no command removes it. Each step is taken under a lock of the folder, so that nobody takes a file that is
being removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from waybill.daemon.durable_file import create_durably
from waybill.daemon.folder_lock import alone_in
from waybill.identity.claims import EnrolmentToken, read_token
from waybill.identity.errors import NameRefused

__all__ = ["check_own", "create_token_file", "remove_token_file", "take_token_file"]

_MAX_BYTES: Final = 1 << 10
_MADE: Final = 0o600
_TAKEN: Final = 0o400


def create_token_file(file: Path, token: EnrolmentToken) -> bool:
    """Whether the token is in its new file; False: there is something already, which stays. Raises OSError."""
    return create_durably(file, _content(token), mode=_MADE)


def take_token_file(file: Path) -> EnrolmentToken:
    """The token of a file that another command made, which does not remove it from now on.

    Raises OSError, and NameRefused for what is no token, or may have been put there by somebody else.
    """
    with alone_in(file.parent):
        # No link is followed, and a pipe is not waited for: who put one there chooses what we would publish.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NameRefused("it is no file")
            check_own(file, found, stat.S_IRWXG | stat.S_IRWXO)
            token = read_token(os.read(descriptor, _MAX_BYTES).decode().removesuffix("\n"))
            os.fchmod(descriptor, _TAKEN)
            return token
        except UnicodeDecodeError as error:
            raise NameRefused(str(error)) from error
        finally:
            os.close(descriptor)


def remove_token_file(file: Path, token: EnrolmentToken) -> None:
    """Removes the file of a token that was made here and never published, unless another command took it meanwhile.

    One that cannot be removed stays: it opens nothing.
    """
    with contextlib.suppress(OSError), alone_in(file.parent):
        found = file.lstat()
        is_as_made = stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IWUSR
        if is_as_made and found.st_size == len(_content(token)) and file.read_bytes() == _content(token):
            file.unlink()


def check_own(path: Path, found: os.stat_result, forbidden: int) -> None:
    """Raises NameRefused for what another user has, or may use in a way that is forbidden."""
    if found.st_uid != os.geteuid():
        raise NameRefused(f"{path} belongs to another user")
    if found.st_mode & forbidden:
        raise NameRefused(f"others may use {path}, by its mode {stat.S_IMODE(found.st_mode):03o}: chmod go= it")


def _content(token: EnrolmentToken) -> bytes:
    return token.text.get_secret_value().encode() + b"\n"
