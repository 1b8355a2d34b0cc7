"""What every daemon needs: serve its status, handle signals, and end when one of its threads ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from prometheus_client.registry import CollectorRegistry
from pydantic import BaseModel

from waybill.daemon.errors import AddressTaken, ThreadEnded
from waybill.daemon.signals import handle_signals
from waybill.daemon.status_reader import StatusEndpoint
from waybill.daemon.status_server import HttpAnswer, Routes, StatusServer, json_answer, metrics_answer

STUCK_AFTER_S: Final = 60.0
"""A thread whose loop has not turned for this time counts as hung."""
_STATUS_S: Final = 1.0


class Component(Protocol):
    """A part of a daemon with threads of its own."""

    @property
    def is_running(self) -> bool:
        """Whether its threads run."""

    def start(self) -> None:
        """Start its threads."""


def serve_status(
    endpoint: StatusEndpoint,
    registry: CollectorRegistry,
    status: Callable[[], BaseModel],
    is_alive: Callable[[], bool] = lambda: True,
    more: Routes | None = None,
) -> StatusServer:
    """Serve `/metrics`, `/status`, `/health` (200 only while the status is `healthy`), `/ready`, `/alive`, and `more`.

    Raises AddressTaken.
    """

    def current(is_good: bool) -> HttpAnswer:
        return json_answer(status().model_dump_json(indent=2), is_good=is_good)

    routes = {
        "/metrics": lambda: metrics_answer(registry),
        "/status": lambda: current(True),
        # unknown is not healthy
        "/health": lambda: current(getattr(status(), "healthy", None) is True and is_alive()),
        # a standby's health is unknown, and it can do its work
        "/ready": lambda: current(getattr(status(), "healthy", None) is not False and is_alive()),
        "/alive": lambda: current(is_alive()),
        **(more or {}),
    }
    try:
        return StatusServer(endpoint.host, endpoint.port, routes)
    except OSError as error:
        where = f"{endpoint.host}:{endpoint.port}"
        raise AddressTaken(f"status cannot be served on {where}: {error.strerror}; change [status]") from error


class ThreadWatch:
    """Notices a thread that an error ended; Python itself would let the process continue."""

    def __init__(self, on_ended: Callable[[], object] = lambda: None) -> None:
        self._on_ended, self._ended = on_ended, ""
        threading.excepthook = self._note

    def check(self, server: StatusServer, components: Iterable[Component] = ()) -> None:
        """Raises ThreadEnded if one ended, or the status is no longer served."""
        if self._ended or not server.is_serving:
            raise ThreadEnded(self._ended or "the thread that serves the status ended")
        for one in components:
            if not one.is_running:
                raise ThreadEnded(f"a thread of {type(one).__name__} ended")

    def _note(self, ended: threading.ExceptHookArgs) -> None:
        name = ended.thread.name if ended.thread else "unknown"
        self._ended = f"the thread {name} ended with {ended.exc_type.__name__}: {ended.exc_value}"
        self._on_ended()


def run_components(
    components: Iterable[Component],
    server: StatusServer,
    *,
    turn: Callable[[threading.Event], object],
    update: Callable[[float], object],
) -> None:
    """Start the components, and return after SIGTERM or SIGINT. Raises ThreadEnded. Main thread only.

    `turn` is called repeatedly, and waits at most a second; `update` once a second, with the monotonic clock.
    """
    stop, watch, next_s = threading.Event(), ThreadWatch(), 0.0
    parts = [*components]
    with handle_signals((signal.SIGTERM, signal.SIGINT), lambda _: stop.set()):
        for one in parts:
            one.start()
        while not stop.is_set():
            turn(stop)
            if (now_s := time.monotonic()) >= next_s:
                next_s = now_s + _STATUS_S
                update(now_s)
            watch.check(server, parts)
