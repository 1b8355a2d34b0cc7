"""One gateway process: its loop, its status server, its signals and its threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import structlog

from gateway.config import Drain, GatewaySettings
from gateway.errors import ThreadEnded
from gateway.loop import GatewayLoop
from gateway.status_endpoint import serve_status
from waybill.daemon.status_server import StatusServer
from waybill.daemon.wakeup import WakeUp

_LOG = structlog.get_logger("gateway")


class Service:
    """One gateway process. `reload` gives the drain settings anew when SIGHUP comes.

    `log_suppressed` says in the log which lines it left out.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        reload: Callable[[], Drain],
        log_suppressed: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings, self._reload = settings, reload
        self._wake = WakeUp()
        self._loop = GatewayLoop(settings, self._wake, log_suppressed=log_suppressed)
        self._ended_thread = ""

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is in flight within the stop time-out."""
        # By itself a thread that raises ends without a consequence for the process.
        threading.excepthook = self._on_thread_ended
        loop = self._loop
        with (
            serve_status(self._settings.status, loop.metrics.registry, loop.status_holder) as server,
            self._wake.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals,
        ):
            _LOG.info("started", gateway=self._settings.name, region=self._settings.region)
            try:
                while not loop.is_finished:
                    self._handle_signals(signals)
                    loop.run_once()
                    self._check_threads(server)
                loop.disconnect()
            finally:
                left = loop.close()
            # Nothing is lost: their devices send them again.
            _LOG.info("stopped", in_flight=left)

    def _handle_signals(self, signals: set[int]) -> None:
        if signal.SIGHUP in signals:
            signals.discard(signal.SIGHUP)
            self._loop.reload(self._reload())
        if signals:
            self._loop.stop()

    def _check_threads(self, server: StatusServer) -> None:
        """Half a gateway is none: without the thread that closes Pulsar or serves the status, the process ends."""
        if self._ended_thread or not server.is_serving:
            raise ThreadEnded(self._ended_thread or "the thread that serves the status ended")

    def _on_thread_ended(self, ended: threading.ExceptHookArgs) -> None:
        name = ended.thread.name if ended.thread else "unknown"
        self._ended_thread = f"the thread {name} ended with {ended.exc_type.__name__}: {ended.exc_value}"
        self._wake.wake()
