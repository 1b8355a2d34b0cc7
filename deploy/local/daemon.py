"""A daemon of our own (edge-agent, fleet-gateway, cloud-jobs, fleet-simulator) under the same supervision."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from deploy.local.server import Server
from deploy.local.server_health import Health, HttpHealth

__all__ = ["DaemonProcess"]


class DaemonProcess(Server):
    """Any command under supervision: `python -m <module> <arguments>`, or a program by its path.

    `healthy_when` is asked until it says yes (see `http_health`); without it the daemon counts as started once it has
    lived for `settle_s` seconds, and nobody knows whether it is healthy.
    """

    kind = "daemon"
    start_timeout_s = 60.0

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        healthy_when: Callable[[], bool] | None = None,
        addresses: Mapping[str, str] | None = None,
        settle_s: float = 0.5,
    ) -> None:
        super().__init__(name, folder)
        self._command = list(command)
        self._env = dict(env or {})
        self._healthy_when = healthy_when
        self._addresses = dict(addresses or {})
        self._settle_s = settle_s
        self._started_at = 0.0

    @classmethod
    def python(
        cls,
        name: str,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        healthy_when: Callable[[], bool] | None = None,
        addresses: Mapping[str, str] | None = None,
        settle_s: float = 0.5,
    ) -> Self:
        """A module of ours, run by this interpreter."""
        command = [sys.executable, "-m", module, *arguments]
        return cls(name, command, folder, env=env, healthy_when=healthy_when, addresses=addresses, settle_s=settle_s)

    def command(self) -> Sequence[str]:
        """As given."""
        return self._command

    def environment(self) -> Mapping[str, str]:
        """As given; output is not buffered, so that the log's last lines are the last ones."""
        return {"PYTHONUNBUFFERED": "1", **self._env}

    def addresses(self) -> dict[str, str]:
        """As given."""
        return self._addresses

    def start(self) -> None:
        """Start the process and return at once."""
        self._started_at = time.monotonic()
        super().start()

    def health(self) -> Health | None:
        """`healthy_when` where it is a question that other processes can ask too (`http_health` gives one)."""
        return self._healthy_when if isinstance(self._healthy_when, HttpHealth) else None

    @property
    def can_be_asked(self) -> bool:
        """Whether there is a `healthy_when`."""
        return self._healthy_when is not None

    def probe(self) -> bool:
        """Ask `healthy_when`, or wait for the daemon to settle."""
        if self._healthy_when:
            return self._healthy_when()
        return time.monotonic() - self._started_at >= self._settle_s
