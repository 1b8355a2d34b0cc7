"""The clock of a Pulsar cluster, as its admin address has it, beside our own: for who is about to publish.

The order of what is published follows the publisher's clock, and every message is dated by it: nothing in Pulsar says
afterwards when it came. So a clock that is wrong is found before it publishes. Answers of the admin interface have
the moment of the server (`Date`, RFC 9110), also where it says that we may not do more than ask (403). Where it does
not take who we say that we are (401), it has none, and would not take what we publish either.
"""

from __future__ import annotations

import contextlib
import email.utils
import socket
import time
from collections.abc import Callable
from datetime import UTC
from typing import Final
from urllib.parse import urlsplit

from waybill.daemon.status_reader import timed_chunks
from waybill.pulsar.pulsar_address import each_host
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, PulsarToken, access_tls_context

MAX_CLOCK_DIFFERENCE_S: Final = 60.0
_PATH: Final = "/admin/v2/clusters"
_TIMEOUT_S: Final = 10.0
_MAX_HEAD_BYTES: Final = 16 << 10
_UNAUTHORISED: Final = b"401"
_PORTS: Final = {"http": 80, "https": 443}


class ClockUnknown(Exception):
    """The cluster's clock cannot be asked; the message names the address and why."""


class NotLetIn(ClockUnknown):
    """The cluster does not take who we say that we are: waiting does not help."""


class ClockDiffers(Exception):
    """Our clock and the cluster's are too far apart. `ahead_s`: by so much ours is ahead."""

    def __init__(self, url: str, ahead_s: float) -> None:
        where = "ahead of" if ahead_s > 0 else "behind"
        super().__init__(
            f"this machine's clock is {abs(ahead_s):.0f} s {where} that of {url}; what it publishes would come in the "
            f"wrong order: set it right (at most {MAX_CLOCK_DIFFERENCE_S:.0f} s apart), and ask again"
        )
        self.ahead_s = ahead_s


def check_clock(url: str, access: PulsarAccess, *, clock: Callable[[], float] = time.time) -> None:
    """Raises ClockDiffers if our clock (seconds since 1970) is far from that of the server of an HTTP address.

    Raises ClockUnknown if it does not answer, NotLetIn if it takes no such token as ours.
    """
    before_s = clock()
    stated_s = _asked_moment_s(url, access)
    # A moment is stated in whole seconds, some time between the question and the answer.
    ahead_s = (before_s + clock()) / 2 - (stated_s + 0.5)
    if abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S:
        raise ClockDiffers(url, ahead_s)


def stated_moment_s(head: bytes) -> float:
    """The moment in the head of an HTTP answer, in seconds since 1970. Pure. Raises ClockUnknown, NotLetIn."""
    lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")
    if not lines[0].startswith(b"HTTP/1."):
        raise ClockUnknown("what answers there speaks no HTTP")
    if lines[0].split()[1:2] == [_UNAUTHORISED]:
        raise NotLetIn("authentication failed: the token has expired, or another issuer signed it")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"date":
            try:
                stated = email.utils.parsedate_to_datetime(value.strip().decode("ascii"))
                return stated.replace(tzinfo=stated.tzinfo or UTC).timestamp()
            except (ValueError, TypeError, OverflowError) as error:
                raise ClockUnknown("its answer has a date that is none") from error
    raise ClockUnknown("its answer has no date")


def _asked_moment_s(url: str, access: PulsarAccess) -> float:
    """By the first host that answers."""
    *hosts, last = each_host(url)
    for host in hosts:
        with contextlib.suppress(ClockUnknown):
            return _moment_of_host_s(host, access)
    return _moment_of_host_s(last, access)


def _moment_of_host_s(url: str, access: PulsarAccess) -> float:
    """By the head of the server's answer, whatever else it says, all of it within the time and the size."""
    ends_s = time.monotonic() + _TIMEOUT_S
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=_TIMEOUT_S))
            if parts.scheme == "https":
                context = access_tls_context(access)
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
            connection.sendall(_request(parts.netloc, access))
            return stated_moment_s(_head(connection, ends_s))
    except NotLetIn as error:
        raise NotLetIn(f"the clock of {url} is not known: {access.token_problem(time.time()) or error}") from error
    except ClockUnknown as error:
        raise ClockUnknown(f"the clock of {url} is not known: {error}") from error
    # Of an address: a name that is none; of files: OSError, and ValueError for a key with a passphrase.
    except (PulsarAccessError, OSError, ValueError, KeyError) as error:
        raise ClockUnknown(f"the clock of {url} is not known: {error}") from error


def _request(host: str, access: PulsarAccess) -> bytes:
    # What Pulsar's web server itself refuses, for an unknown path or for want of a token, is dated by nobody.
    token = PulsarToken(access)
    shown = f"Authorization: Bearer {token()}\r\n" if token else ""
    return f"HEAD {_PATH} HTTP/1.0\r\nHost: {host}\r\n{shown}\r\n".encode("ascii")


def _head(connection: socket.socket, ends_s: float) -> bytes:
    data = b""
    for chunk in timed_chunks(connection, ends_s):
        data += chunk
        if b"\r\n\r\n" in data or len(data) > _MAX_HEAD_BYTES:
            break
    return data
