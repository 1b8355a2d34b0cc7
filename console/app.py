"""The console's application: every address, and who may open it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from console.assets import STATIC, Assets, Basemap
from console.context import Console, Query
from console.errors import ConsoleRefused, NotThere
from console.http import Renderer, SecurityHeaders, View
from console.page import Page
from console.pages import fleet

if TYPE_CHECKING:
    from console.auth import SignIn

PAGES: Final[Mapping[str, View]] = {
    "/": fleet.page,
}
"""Each page by its address."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


def make_app(console: Console, *, hosts: tuple[str, ...] = ()) -> Starlette:
    """The application. `hosts`: further names by which it may be called."""
    renderer = Renderer(console, Assets.built())
    routes: list[BaseRoute] = [Route(path, renderer.endpoint(view), methods=["GET"]) for path, view in PAGES.items()]
    routes += [
        Route("/basemap", _basemap(console), methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
        Route("/{rest:path}", renderer.endpoint(_no_page), methods=["GET"]),
    ]
    signing = _sign_in(console)
    routes = [*(signing.routes() if signing else ()), *routes]
    middleware = [
        Middleware(SecurityHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, *hosts], www_redirect=False),
    ]
    return Starlette(routes=routes, middleware=[*middleware, *(signing.middleware() if signing else ())])


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
