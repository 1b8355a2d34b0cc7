"""Serving the application until a signal."""

from __future__ import annotations

import ipaddress
import socket as sockets

import uvicorn
from starlette.types import ASGIApp

from cloud_jobs.job_settings import ConsoleSettings
from console.errors import ConsoleRefused


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_socket(settings: ConsoleSettings) -> sockets.socket:
    """The listening socket. Raises ConsoleRefused: the address is taken, or is not loopback and there is no `auth`."""
    if settings.auth is None and not is_loopback(settings.host):
        raise ConsoleRefused(
            f"console.host is {settings.host}, which is not loopback: positions and bills would be open to everybody; "
            "set [console.auth], or listen on 127.0.0.1"
        )
    family = sockets.AF_INET6 if ":" in settings.host else sockets.AF_INET
    socket = sockets.socket(family, sockets.SOCK_STREAM)
    socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    try:
        socket.bind((settings.host, settings.port))
    except OSError as error:
        socket.close()
        raise ConsoleRefused(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}; choose another --port"
        ) from error
    return socket


def serve(app: ASGIApp, socket: sockets.socket, *, grace_s: int) -> None:
    """Serves until SIGINT or SIGTERM; open streams end within `grace_s`."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_s,
        limit_concurrency=200,
        timeout_keep_alive=15,
    )
    uvicorn.Server(config).run(sockets=[socket])
