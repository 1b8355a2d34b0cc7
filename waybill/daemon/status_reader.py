"""Where a process serves its status, and how it is asked; the answer is bounded in size and depth."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any

from pydantic import Field

from waybill.record import InvalidJson, parse_json
from waybill.settings import Settings

MAX_ANSWER_BYTES = 1 << 20
_MAX_VALUES = 100_000


class StatusEndpoint(Settings):
    """Where a daemon serves metrics, health and status, loopback unless said otherwise."""

    host: str = Field("127.0.0.1", min_length=1, description="0.0.0.0: also for a Prometheus on another machine")
    port: int = Field(ge=1, le=65_535)


class StatusUnavailable(Exception):
    """No process answers with a status at an address."""


_UNHEALTHY = 503


def fetch_status(host: str, port: int, path: str, *, timeout_s: float, also_unhealthy: bool = False) -> dict[str, Any]:
    """The JSON object that a `StatusServer` answers for a path. Raises StatusUnavailable.

    `timeout_s` bounds each wait for bytes. Redirects are not followed. `also_unhealthy`: an answer of 503 has its
    reasons in its object, too.
    """
    try:
        with closing(HTTPConnection(host, port, timeout=timeout_s)) as connection:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            if answer.status != 200 and not (also_unhealthy and answer.status == _UNHEALTHY):
                raise StatusUnavailable(f"the answer is {answer.status} {answer.reason:.100}")
            body = answer.read(MAX_ANSWER_BYTES + 1)
        value = parse_json(body, max_bytes=MAX_ANSWER_BYTES, max_values=_MAX_VALUES)
    except OSError as error:
        raise StatusUnavailable(error.strerror or str(error)) from error
    except (HTTPException, UnicodeError, ValueError) as error:
        raise StatusUnavailable(f"the answer is not HTTP: {error!r:.200}") from error
    except InvalidJson as error:
        raise StatusUnavailable(f"the answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StatusUnavailable("the answer is not a status: not a JSON object")
    return value
