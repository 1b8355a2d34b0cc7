"""Serving the application until a signal."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from cloud_jobs.job_settings import ConsoleSettings
from console.errors import ConsoleRefused

_M_ARENA_MAX = -8
"""Of malloc.h."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_socket(settings: ConsoleSettings) -> socket.socket:
    """The listening socket. Raises ConsoleRefused: the address is taken, or is not loopback and there is no `auth`."""
    if settings.auth is None and not is_loopback(settings.host):
        raise ConsoleRefused(
            f"console.host is {settings.host}, which is not loopback: positions and bills would be open to everybody; "
            "set [console.auth], or listen on 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((settings.host, settings.port))
        # a browser that comes before the server runs waits
        opened.listen()
    except OSError as error:
        opened.close()
        raise ConsoleRefused(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}; choose another --port"
        ) from error
    return opened


class ConsoleServer(uvicorn.Server):
    """Ends the open streams at its shutdown, which would wait for them."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


def serve(app: Starlette, listening: socket.socket, *, grace_s: int) -> None:
    """Serves until SIGINT or SIGTERM; requests that run then have `grace_s` to end."""
    _share_one_heap()
    make_server(app, app.state.streams.end, grace_s=grace_s).run(sockets=[listening])


def _share_one_heap() -> None:
    """Has all threads allocate in one heap of glibc: each of 40 threads would keep what its largest page needed."""
    # only glibc has it
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_M_ARENA_MAX, 1)


def make_server(app: ASGIApp, end_streams: Callable[[], None], *, grace_s: int) -> ConsoleServer:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_s,
        limit_concurrency=200,
        ws="none",
        timeout_keep_alive=15,
    )
    return ConsoleServer(config, end_streams)
