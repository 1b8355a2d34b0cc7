"""The console's application: every address, and who may open it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from console.assets import STATIC, Assets, Basemap
from console.context import Console, Query
from console.errors import ConsoleRefused, NotThere
from console.http import FileView, Renderer, SecurityHeaders, View
from console.page import Page
from console.pages import bills, device, documents, fences, fleet, happenings, health, reconciled, replay, where
from console.stream import LiveStreams

if TYPE_CHECKING:
    from console.auth import SignIn

PAGES: Final[Mapping[str, View]] = {
    "/": fleet.page,
    "/replay": replay.page,
    "/replay/data": replay.data,
    "/where": where.page,
    "/alerts": happenings.alerts_page,
    "/events": happenings.events_page,
    "/fences": fences.page,
    "/fences/{id:path}": fences.fence_page,
    "/canaries": health.canaries_page,
    "/health": health.page,
    "/bills": bills.page,
    "/bills/{payer}": bills.payer_page,
    "/documents/{number}": documents.page,
    "/documents/{number}/lines/{line}": documents.line_page,
    "/documents/{number}/lines/{line}/{hour}": documents.hour_page,
    "/reconcile": reconciled.page,
    "/device/{tenant}/{device}": device.page,
    "/shared/{token}": documents.page,
    "/shared/{token}/lines/{line}": documents.line_page,
    "/shared/{token}/lines/{line}/{hour}": documents.hour_page,
}
"""Each page by its address."""

FILES: Final[Mapping[str, FileView]] = {
    "/documents/{number}.{suffix}": documents.file,
    "/shared/{token}/document.{suffix}": documents.file,
}
"""Each file to download by its address; they come before the pages."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


def make_app(console: Console, *, hosts: tuple[str, ...] = ()) -> Starlette:
    """The application. `hosts`: further names by which it may be called. `state.streams`: its open streams."""
    streams, signing = LiveStreams(console), _sign_in(console)
    renderer = Renderer(console, Assets.built())
    routes: list[BaseRoute] = [
        *(signing.routes() if signing else ()),
        *(Route(path, renderer.endpoint(view), methods=["GET"]) for path, view in FILES.items()),
        *(Route(path, renderer.endpoint(view), methods=["GET"]) for path, view in PAGES.items()),
        Route("/basemap", _basemap(console), methods=["GET"]),
        Route("/live", streams.endpoint, methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
        Route("/{rest:path}", renderer.endpoint(_no_page), methods=["GET"]),
    ]
    middleware = [
        Middleware(SecurityHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, *hosts], www_redirect=False),
        *(signing.middleware() if signing else ()),
    ]
    app = Starlette(routes=routes, middleware=middleware, lifespan=_following(console, streams))
    app.state.streams = streams
    return app


def _following(console: Console, streams: LiveStreams) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def follow(_app: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(console.feed.start)
        yield
        streams.end()
        await run_in_threadpool(console.feed.close)

    return follow


def _sign_in(console: Console) -> SignIn | None:
    auth = console.settings.console.auth
    if auth is None:
        return None
    # only a console that others reach loads the client of OpenID Connect
    from console.auth import SignIn  # noqa: PLC0415

    try:
        return SignIn(auth)
    except ValueError as error:
        raise ConsoleRefused(f"console.auth.{error}") from error


def _basemap(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        basemap = Basemap.of(console.settings.console)
        return Response(status_code=404) if basemap is None else basemap.answer()

    return answer


def _no_page(_console: Console, _query: Query) -> Page:
    raise NotThere("there is no such page")
