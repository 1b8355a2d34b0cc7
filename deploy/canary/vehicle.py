"""The canary's vehicle: a real Mosquitto and a real agent, started here, and started again when they end."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Final

import structlog

from deploy.canary.agent_file import agent_settings, settings_toml
from deploy.canary.config import CanarySettings
from deploy.local import DaemonProcess, MosquittoBroker, MosquittoSettings, PortBook, Server
from waybill.daemon.backoff import Backoff
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.status_reader import StatusUnavailable, fetch_status

__all__ = ["CanaryVehicle"]

_FIRST_S: Final = 1.0
_MAX_S: Final = 30.0
_ASK_S: Final = 2.0
_LOG = structlog.get_logger("canary")


class _Supervised:
    """A child process that is started again when it ended by itself, later and later."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._backoff = Backoff(_FIRST_S, _MAX_S, random.random)
        self._again_s: float | None = None

    def supervise(self) -> None:
        """Starts it again if that is due."""
        # a child that runs is left alone, however it fares: its hop says so
        if self.server.pid is not None:
            return
        now_s = time.monotonic()
        if self._again_s is None:
            self._again_s = now_s + self._backoff.take_delay_s()
            _LOG.warning("ended", process=self.server.name, last=self.server.last_lines(3))
        elif now_s >= self._again_s:
            self._again_s = None
            self.server.stop()
            self.server.start()


class CanaryVehicle:
    """Broker and agent in the canary's folder. `settings`: those of the agent."""

    def __init__(self, settings: CanarySettings) -> None:
        folder = settings.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        ports = PortBook(folder / "ports.json")
        self._broker: MosquittoBroker | None = None
        if settings.broker.port is None:
            self._broker = MosquittoBroker(
                settings.device, folder / "broker", settings=MosquittoSettings(), ports=ports
            )
        self.broker_port = settings.broker.port or (self._broker.port if self._broker else 0)
        self._status_port = ports.port("edge-agent")
        self.settings = agent_settings(settings, broker_port=self.broker_port, status_port=self._status_port)
        self._agent = DaemonProcess.python(
            "edge-agent", "edge_agent", ["run", "--config", str(folder / "agent.toml")], folder / "agent"
        )
        self._file = folder / "agent.toml"
        self._supervised = [_Supervised(one) for one in (self._broker, self._agent) if one is not None]

    @property
    def has_sent_before(self) -> bool:
        """Whether there is a buffer of an earlier run."""
        return any(self._buffer.glob("buffer.db*"))

    def start(self) -> None:
        """Starts the broker, waits for it, and starts the agent. Raises LocalStackError, OSError."""
        replace_durably(self._file, settings_toml(self.settings).encode(), mode=0o600)
        if self._broker is not None:
            self._broker.start()
            # an agent without its broker would wait by its own back-off
            self._broker.wait()
        self._agent.start()

    def is_listening(self) -> bool:
        """Whether the agent is connected to the vehicle's broker: from then on nothing that is published is lost."""
        try:
            answer = fetch_status("127.0.0.1", self._status_port, "status", timeout_s=_ASK_S)
        except StatusUnavailable:
            return False
        return answer.get("local_broker") is True

    def supervise(self) -> None:
        """Starts again what has ended; to be called once a second or so."""
        for one in self._supervised:
            one.supervise()

    def stop(self) -> None:
        """Stops both, the agent first: it commits what it has taken."""
        for one in reversed(self._supervised):
            one.server.stop()

    @property
    def _buffer(self) -> Path:
        return self.settings.buffer.path
