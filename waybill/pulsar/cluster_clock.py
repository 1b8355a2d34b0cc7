"""The clock of a Pulsar cluster, by the `Date` of its admin interface, compared with ours before a publication.

Publications are ordered by their publisher's clock, and nothing in Pulsar shows later when a message really came. The
admin interface states its time also when it refuses the request (403), but not to an unknown client (401).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from waybill.pulsar.pulsar_address import each_host
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, PulsarToken, access_tls_context

MAX_CLOCK_DIFFERENCE_S: Final = 60.0
_PATH: Final = "/admin/v2/clusters"
_TIMEOUT_S: Final = 10.0


class ClockUnknown(Exception):
    """The cluster's clock cannot be read; the message names the address and why."""


class NotLetIn(ClockUnknown):
    """The cluster does not accept our token: waiting does not help."""


class ClockDiffers(Exception):
    """This machine's clock and the cluster's are too far apart. `ahead_s`: how far ours is ahead."""

    def __init__(self, url: str, ahead_s: float) -> None:
        where = "ahead of" if ahead_s > 0 else "behind"
        super().__init__(
            f"this machine's clock is {abs(ahead_s):.0f} s {where} that of {url}, so its publications would have the "
            f"wrong order: set it right (at most {MAX_CLOCK_DIFFERENCE_S:.0f} s apart), and retry"
        )
        self.ahead_s = ahead_s


def check_clock(url: str, access: PulsarAccess, *, clock: Callable[[], float] = time.time) -> None:
    """Compare the clock (seconds since 1970) with that of the first host of an admin address that answers.

    Raises ClockDiffers, ClockUnknown if none answers, NotLetIn if the token is not accepted.
    """
    problem = ClockUnknown(f"{url} names no host")
    for host in each_host(url):
        try:
            before_s = clock()
            stated_s = _stated_moment_s(host, access)
        except ClockUnknown as error:
            problem = error
            continue
        # The server states whole seconds, at some time between request and answer.
        ahead_s = (before_s + clock()) / 2 - (stated_s + 0.5)
        if abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S:
            raise ClockDiffers(url, ahead_s)
        return
    raise problem


def _stated_moment_s(url: str, access: PulsarAccess) -> float:
    try:
        token = PulsarToken(access)
        headers = {"Authorization": f"Bearer {token()}"} if token else {}
        # Without the environment: no proxy stands between a program and its cluster.
        with httpx.Client(verify=access_tls_context(access), timeout=_TIMEOUT_S, trust_env=False) as http:
            answer = http.head(f"{url}{_PATH}", headers=headers)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            why = access.token_problem(time.time()) or "the token has expired, or another issuer signed it"
            raise NotLetIn(f"the clock of {url} is not known: {why}")
        stated = parsedate_to_datetime(answer.headers["date"])
    except (PulsarAccessError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError) as error:
        raise ClockUnknown(f"the clock of {url} is not known: {error}") from error
    return stated.replace(tzinfo=stated.tzinfo or UTC).timestamp()
