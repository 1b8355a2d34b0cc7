"""The certificates that the region's authority signed for devices, read from its folder as it grows.

A few files at a time, so that a start does not wait for those of years. Files are moved away long after their end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
from cryptography import x509

from waybill.identity.authority import common_name
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.names import DeviceName, parse_name

MAX_READ: Final = 200
"""Files that one call reads, a fifth of a millisecond each."""
PUT_AWAY_AFTER_S: Final = 30 * 86_400.0
"""How long a certificate stays in the folder after its end."""
PUT_AWAY_EVERY_S: Final = 600.0
"""The folder is listed again afterwards."""
MAX_PUT_AWAY: Final = 5000
_TIME_STEP_NS: Final = 1_000_000_000
_LOG = structlog.get_logger("access")


class IssuedToDevice(NamedTuple):
    name: str
    serial: int
    not_after_s: float


class IssuedReader:
    """Reads each certificate of an authority once, the latest found first.

    `may_put_away`: whether the clock is known to be right, so that ended certificates may be moved away.
    """

    def __init__(
        self,
        authority: AuthorityFolder,
        clock: Callable[[], float] = time.time,
        may_put_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self._authority, self._clock, self._may_put_away = authority, clock, may_put_away
        self._folder = authority.folder / "issued"
        self._ends_s: dict[str, float] = {}
        self._waiting: dict[str, None] = {}
        # The error of each file that could not be read; a copied file may be incomplete.
        self._unread: dict[str, str] = {}
        self._changed_ns = -1
        self._put_away_s = 0.0

    @property
    def problem(self) -> str:
        """Files that could not be read the last time; "" if there are none."""
        if not self._unread:
            return ""
        file, why = next(iter(self._unread.items()))
        return (
            f"{len(self._unread)} certificates are not read, as {self._folder / file}: {why}; if their devices are"
            " revoked, these certificates are not"
        )

    @property
    def is_behind(self) -> bool:
        """Whether files wait to be read, as after a start."""
        return bool(self._waiting)

    def read_new(self) -> list[IssuedToDevice]:
        """Some certificates that are new or could not be read before. Raises OSError for the folder."""
        again, self._unread = self._unread, {}
        self._put_away()
        self._find_new()
        # At the front, because the last ones are read first.
        self._waiting = {**dict.fromkeys(again), **self._waiting} if again else self._waiting
        return self.read_waiting()

    def read_waiting(self) -> list[IssuedToDevice]:
        """Some of the waiting certificates, without a look into the folder."""
        files = [self._waiting.popitem()[0] for _ in range(min(MAX_READ, len(self._waiting)))]
        return [issued for file in files if (issued := self._read(file)) is not None]

    def _find_new(self) -> None:
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed_ns == self._changed_ns:
            return
        with os.scandir(self._folder) as entries:
            found = [one.name for one in entries if one.name not in self._ends_s and one.name.endswith(".pem")]
        self._waiting |= dict.fromkeys(found)
        # A change at this moment could be followed by another with the same time, so look again.
        self._changed_ns = changed_ns if time.time_ns() - changed_ns > _TIME_STEP_NS else -1

    def _put_away(self) -> None:
        """Move away what ended long ago: a growing folder would take minutes to list and read after some years."""
        now_s = self._clock()
        # In both directions: a clock that was set back must not delay it.
        if abs(now_s - self._put_away_s) < PUT_AWAY_EVERY_S or not self._may_put_away():
            return
        self._put_away_s = now_s
        ended = [file for file, end_s in self._ends_s.items() if end_s + PUT_AWAY_AFTER_S <= now_s]
        for file in ended[:MAX_PUT_AWAY]:
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._authority.put_away(file)
            except OSError as error:
                _LOG.error("an expired certificate cannot be moved", file=file, problem=str(error))
                return
            del self._ends_s[file]

    def _read(self, file: str) -> IssuedToDevice | None:
        path = self._folder / file
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            name, ends_s = common_name(certificate.subject), certificate.not_valid_after_utc.timestamp()
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - of half a dozen kinds: the others are to be read
            self._unread[file] = getattr(error, "strerror", None) or str(error)
            return None
        self._ends_s[file] = ends_s
        # Gateways and servers are not in the device registry.
        if not isinstance(parse_name(name), DeviceName):
            return None
        return IssuedToDevice(name, certificate.serial_number, ends_s)
