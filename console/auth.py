"""Sign-in by OpenID Connect: who looks, and which tenants and accounts the groups of that person may see."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import OAuth
from httpx import HTTPError
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cloud_jobs.job_settings import ConsoleAuth
from console.context import Viewer
from waybill.settings import printable

SIGN_IN: Final = "/sign-in"
SIGNED_IN: Final = "/signed-in"
SIGN_OUT: Final = "/sign-out"
_OPEN: Final = (SIGN_IN, SIGNED_IN, SIGN_OUT, "/static/", "/shared/")
"""Addresses that need no session. A shared link is proven by itself."""
_NOBODY: Final = Viewer("nobody", frozenset(), frozenset())
_log = structlog.get_logger(__name__)


def viewer_of(settings: ConsoleAuth, name: str, groups: list[str]) -> Viewer | None:
    """What a person in these groups may see; None if no group of the settings is among them.

    A group with neither `tenants` nor `accounts` sees everything. Otherwise the names of all groups add up, and both
    lists limit: two limited groups never see more than what one of them names.
    """
    rights = [settings.groups[group] for group in groups if group in settings.groups]
    if not rights:
        return None
    if any(one.tenants is None and one.accounts is None for one in rights):
        return Viewer(name)
    return Viewer(name, _named(one.tenants for one in rights), _named(one.accounts for one in rights))


def _named(lists: Iterable[tuple[str, ...] | None]) -> frozenset[str] | None:
    """All names of some lists; None if there is no list."""
    known = [one for one in lists if one is not None]
    return frozenset().union(*known) if known else None


class SignInRequired:
    """Puts the viewer of a session into the scope; without a session the browser goes to sign in, and JSON gets 401."""

    def __init__(self, app: ASGIApp, settings: ConsoleAuth) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"].startswith(_OPEN)
        known = None if is_open else scope["session"].get("user")
        viewer = viewer_of(self._settings, known["name"], known["groups"]) if known else _NOBODY if is_open else None
        if viewer is not None:
            scope["viewer"] = viewer
            await self._app(scope, receive, send)
            return
        request, answer = Request(scope), _refusal(known)
        if known is None and "text/html" in request.headers.get("accept", ""):
            scope["session"]["next"] = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            answer = RedirectResponse(SIGN_IN)
        await answer(scope, receive, send)


def _refusal(known: dict[str, Any] | None) -> Response:
    if known is None:
        return PlainTextResponse("sign in first\n", 401)
    text = f"{printable(known['name'])} is signed in, but no group of console.auth.groups is among yours\n"
    return PlainTextResponse(text, 403)


class SignIn:
    """The addresses of signing in and out, with the provider that the settings name."""

    def __init__(self, settings: ConsoleAuth) -> None:
        self._settings = settings
        self._provider: Any = OAuth().register(
            "provider",
            client_id=settings.client_id,
            client_secret=settings.client_secret(),
            server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={"scope": settings.scope, "code_challenge_method": "S256", "timeout": 10},
        )

    def middleware(self) -> list[Middleware]:
        """Sessions are signed by a key of this process: they end when it ends."""
        secure = urlsplit(self._settings.base_url).scheme == "https"
        session = Middleware(
            SessionMiddleware,
            secret_key=secrets.token_hex(32),
            session_cookie="waybill",
            max_age=round(self._settings.session_h * 3600),
            same_site="lax",
            https_only=secure,
        )
        return [session, Middleware(SignInRequired, settings=self._settings)]

    def routes(self) -> list[Route]:
        return [
            Route(SIGN_IN, self._sign_in, methods=["GET"]),
            Route(SIGNED_IN, self._signed_in, methods=["GET"]),
            Route(SIGN_OUT, self._sign_out, methods=["GET"]),
        ]

    async def _sign_in(self, request: Request) -> Response:
        # a session that signs in again does not go on meanwhile
        request.session.pop("user", None)
        try:
            answer: Response = await self._provider.authorize_redirect(
                request, self._settings.base_url.rstrip("/") + SIGNED_IN
            )
        except (HTTPError, AuthlibBaseError, ValueError, KeyError) as error:
            return self._failed("the provider of identities does not answer as expected", error)
        return answer

    async def _signed_in(self, request: Request) -> Response:
        try:
            token = await self._provider.authorize_access_token(request)
        except (HTTPError, AuthlibBaseError, ValueError, KeyError) as error:
            return self._failed("the provider of identities refused, or its answer is not valid", error)
        claims = token.get("userinfo") or {}
        groups = claims.get(self._settings.groups_claim)
        name = str(claims.get("email") or claims.get("preferred_username") or claims.get("sub") or "")[:200]
        following = request.session.pop("next", "/")
        request.session["user"] = {
            "name": name,
            "groups": [one for one in _texts(groups) if one in self._settings.groups],
        }
        _log.info("signed in", user=printable(name))
        # only an address of this console
        return RedirectResponse(following if following.startswith("/") and not following.startswith("//") else "/")

    async def _sign_out(self, request: Request) -> Response:
        request.session.clear()
        return PlainTextResponse("signed out\n")

    def _failed(self, text: str, error: Exception) -> Response:
        _log.warning("nobody was signed in", error=f"{type(error).__name__}: {error}")
        return PlainTextResponse(f"{text}: {type(error).__name__}; the log of the console has more\n", 502)


def _texts(groups: object) -> list[str]:
    """The texts of a claim; a provider may send anything."""
    return [one for one in groups if isinstance(one, str)] if isinstance(groups, list) else []
