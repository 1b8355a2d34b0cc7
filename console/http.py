"""Pages over HTTP: HTML or JSON of the same page, security headers, and one answer for each kind of fault."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote
from zoneinfo import ZoneInfoNotFoundError

import structlog
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloud_jobs.errors import CloudError
from console.asked import check_asked
from console.assets import Assets, Basemap
from console.context import Console, Query
from console.errors import BadQuery, NotThere
from console.page import UNKNOWN, Clock, Download, Page, as_json, shown

_log = structlog.get_logger(__name__)

CSP: Final = (
    "default-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_SHARED: Final = "/shared/"
View = Callable[[Console, Query], Page]
"""A page of what the console knows, for a query. Raises CloudError."""
FileView = Callable[[Console, Query], Download]
"""A file of what the console knows. Raises CloudError."""

NAVIGATION: Final = (
    ("/", "Fleet"),
    ("/replay", "Replay"),
    ("/where", "Place and time"),
    ("/bills", "Bills"),
    ("/events", "Events"),
    ("/alerts", "Alerts"),
    ("/fences", "Fences"),
    ("/canaries", "Canaries"),
    ("/health", "Health"),
)


class SecurityHeaders:
    """Adds the headers of every answer. A page with data of a fleet is never kept by a cache."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Renderer:
    """Templates and scripts, and the answer for a page."""

    def __init__(self, console: Console, assets: Assets) -> None:
        self._console = console
        self._assets = assets
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def endpoint(self, view: View | FileView) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page: HTML, or JSON if the request accepts it and no HTML; or of a file to download."""

        async def answer(request: Request) -> Response:
            return await run_in_threadpool(self._answer, view, request)

        return answer

    def _answer(self, view: View | FileView, request: Request) -> Response:
        query = Query.of(request)
        clock, status = Clock.utc(self._console.now()), 200
        try:
            clock = clock_of(self._console, query)
            page = view(self._console, query)
            if isinstance(page, Download):
                return _sent(page)
            clock = clock_of(self._console, query, page.zone)
            check_asked(page, query)
            # a picture is read only now
            return self._response(page, clock, query, request, status)
        except NotThere as error:
            page, status = _fault_page(request, error), 404
        except BadQuery as error:
            page, status = self._asking_again(view, query, request, error), 400
        except CloudError as error:
            _log.warning("a page could not be made", path=_logged_path(request), error=str(error))
            page, status = _fault_page(request, error), 503
        except Exception:  # noqa: BLE001 - what went wrong is for the log, not for whoever looks
            _log.exception("a page failed", path=_logged_path(request))
            page, status = _fault_page(request, CloudError("this page failed; the console's log says why")), 500
        return self._response(page, clock, query, request, status)

    def _response(self, page: Page, clock: Clock, query: Query, request: Request, status: int) -> Response:
        if _wants_json(request):
            return JSONResponse(as_json(page), status, {"vary": "accept"})
        return HTMLResponse(self.html(page, clock, query), status, {"vary": "accept"})

    def _asking_again(self, view: View | FileView, query: Query, request: Request, error: BadQuery) -> Page:
        """The form of a page as it was filled in, and what is wrong with one field."""
        asked = {name: value for name, value in query.asked.items() if name != error.name}
        try:
            made = view(self._console, replace(query, asked=asked))
        except CloudError:
            return _fault_page(request, error)
        if isinstance(made, Download):
            return _fault_page(request, error)
        field = next((one.title for one in made.form if one.name == error.name), error.name)
        title, extra = f"{made.title}: not shown", {"fault": error.name, "bare": made.extra.get("bare")}
        return Page(
            made.path, title, warnings=(f"{field}: {error.text}",), state=query.asked, form=made.form, extra=extra
        )

    def html(self, page: Page, clock: Clock, query: Query) -> str:
        """A page as HTML."""
        return self._templates.get_template(page.template).render(
            page=page,
            clock=clock,
            navigation=NAVIGATION,
            assets=self._assets,
            basemap=Basemap.of(self._console.settings.console),
            shown=lambda value, kind: shown(value, kind, clock),
            unknown=UNKNOWN,
            zones=[(name, query.address_with(page.path, zone=name)) for name in _other_zones(page, clock)],
            data_address=query.address_with(page.path),
        )


def _sent(made: Download) -> Response:
    name = "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "_" for one in made.name)
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(iter(made.body), media_type=made.media_type, headers=headers)


def clock_of(console: Console, query: Query, own: str = "") -> Clock:
    """The clock of a page: in the zone of its query, else in its own, else in that of the accounts."""
    try:
        return console.clock(query.viewer, query.zone, own)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadQuery("zone", f"{query.zone!r} is not a time zone, as Europe/Berlin") from error


def _other_zones(page: Page, clock: Clock) -> list[str]:
    """The zones to choose from. A shared link names no zone of other accounts."""
    of_accounts = () if page.extra.get("bare") else clock.zones
    return [name for name in dict.fromkeys((clock.usual, *of_accounts, "UTC")) if name != clock.zone.key]


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def _fault_page(request: Request, error: CloudError) -> Page:
    path, text = request.url.path, str(error)
    # who has a shared link gets no way to other pages
    return Page(quote(path), f"{text[:1].upper()}{text[1:]}", extra={"bare": path.startswith(_SHARED)})


def _logged_path(request: Request) -> str:
    """The path without the token of a shared link, which opens it."""
    path = request.url.path
    return f"{_SHARED}..." if path.startswith(_SHARED) else path
