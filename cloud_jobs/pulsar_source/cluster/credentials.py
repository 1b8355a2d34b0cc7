"""The token that shows who we are, as its file holds it now."""

import string
from pathlib import Path

import structlog

from cloud_jobs.pulsar_source.errors import OptionError
from cloud_jobs.pulsar_source.options import Access

_log = structlog.get_logger(__name__)
_MAX_BYTES = 64 << 10
_ALLOWED = frozenset(string.ascii_letters + string.digits + string.punctuation)


class Token:
    """The token of an `Access`; from a file it is read anew at each use, so that a rotated one counts at once.

    A file that cannot be read, is empty or half written leaves the token that it held before. It is a callable, as the
    Pulsar client wants it for each connection; once built it raises nothing.
    """

    def __init__(self, access: Access) -> None:
        """Raises OptionError when the file holds no token to begin with."""
        self._file = access.token_file
        self._warned = False
        self._last = access.token.get_secret_value() if access.token else None
        if self._file:
            self._last = _read(self._file)
        elif self._last is not None and not _is_token(self._last):
            raise OptionError("option token: that is no token")

    def __bool__(self) -> bool:
        return self._last is not None

    def __call__(self) -> str:
        """The token in clear."""
        if self._file:
            try:
                self._last = _read(self._file)
                self._warned = False
            except OptionError as error:
                if not self._warned:
                    _log.warning("token_kept", error=str(error))
                self._warned = True
        assert self._last is not None  # callers look first whether there is one
        return self._last


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"option tokenFile: {path} cannot be read: {error}") from error
    if not _is_token(text):
        raise OptionError(f"option tokenFile: {path} holds no token")
    return text


def _is_token(text: str) -> bool:
    return bool(text) and _ALLOWED.issuperset(text)
