"""Who may open the console: sign-in with a provider of identities, groups, and what a person does not see."""

import threading
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import uvicorn
from authlib.jose import RSAKey, jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from cloud_jobs.job_settings import ConsoleAuth, ConsoleGroup, ConsoleSettings
from console.auth import viewer_of
from console.context import Console
from console.errors import ConsoleRefused
from console.serve import open_socket
from tests.console.conftest import NOW, Served, serving


class Provider:
    """A provider of identities on loopback. It signs in whoever `person` names, with the groups of that moment."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "1"}, is_private=True)
        self.forged = RSAKey.generate_key(2048, {"kid": "1"}, is_private=True)
        self.person = {"sub": "1", "email": "clerk@example.com", "groups": ["acme"]}
        self.signs_with = self.key
        self.nonce = ""
        self.url = ""
        paths = {"/.well-known/openid-configuration": self._metadata, "/auth": self._auth, "/keys": self._keys}
        routes = [Route(path, answer) for path, answer in paths.items()]
        self.app = Starlette(routes=[*routes, Route("/token", self._token, methods=["POST"])])

    async def _metadata(self, _: Request) -> JSONResponse:
        names = {"authorization_endpoint": "auth", "token_endpoint": "token", "jwks_uri": "keys"}
        made = {name: f"{self.url}/{path}" for name, path in names.items()}
        return JSONResponse(made | {"issuer": self.url, "id_token_signing_alg_values_supported": ["RS256"]})

    async def _auth(self, request: Request) -> RedirectResponse:
        asked = request.query_params
        assert asked["code_challenge_method"] == "S256"
        self.nonce = asked["nonce"]
        return RedirectResponse(f"{asked['redirect_uri']}?code=c&state={asked['state']}")

    async def _keys(self, _: Request) -> JSONResponse:
        return JSONResponse({"keys": [self.key.as_dict(is_private=False)]})

    async def _token(self, _: Request) -> JSONResponse:
        now = int(time.time())
        claims = self.person | {"iss": self.url, "aud": "waybill", "iat": now, "exp": now + 60, "nonce": self.nonce}
        signed = jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.signs_with)
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": signed.decode()})


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    socket = open_socket(ConsoleSettings(port=0))
    made.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(made.app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    yield made
    server.should_exit = True
    thread.join(10)
    socket.close()


@pytest.fixture
def guarded(provider: Provider, served: Served) -> Iterator[Served]:
    socket = open_socket(ConsoleSettings(port=0))
    port = socket.getsockname()[1]
    socket.close()
    auth = ConsoleAuth(
        issuer=provider.url,
        client_id="waybill",
        base_url=f"http://127.0.0.1:{port}",
        groups={"acme": ConsoleGroup(tenants=("acme",)), "all": ConsoleGroup()},
    )
    settings = served.console.settings
    console = settings.model_copy(update={"console": ConsoleSettings(port=port, auth=auth)})
    yield from serving(Console(console, now=lambda: NOW))


def test_a_person_signs_in_and_sees_the_tenants_of_the_groups(guarded: Served, provider: Provider) -> None:
    accept = {"accept": "text/html"}
    with httpx.Client(base_url=guarded.url, headers=accept, follow_redirects=True, timeout=30) as browser:
        assert browser.get("/", headers={"accept": "application/json"}).status_code == 401
        page = browser.get("/?state=silent")
        assert (page.status_code, urlsplit(str(page.url)).query) == (200, "state=silent")
        shown = browser.get("/", headers={"accept": "application/json"}).json()
        assert shown["tables"]["devices"]["rows"] == [], "the lake's devices are of another tenant"
        browser.get("/sign-out")
        provider.person["groups"] = ["all"]
        assert "eu-0001" in browser.get("/").text


def test_nobody_enters_by_a_forged_token_a_strange_state_or_without_a_group(
    guarded: Served, provider: Provider
) -> None:
    with httpx.Client(base_url=guarded.url, headers={"accept": "text/html"}, timeout=30) as browser:
        assert browser.get("/signed-in?code=c&state=strange").status_code == 502
        provider.signs_with = provider.forged
        assert browser.get("/", follow_redirects=True).status_code == 502
        provider.signs_with = provider.key
        provider.person["groups"] = ["others", {"tenants": "*"}]  # type: ignore[list-item]
        assert browser.get("/", follow_redirects=True).status_code == 403
        sent = parse_qs(urlsplit(browser.get("/sign-in").headers["location"]).query)
        assert sent["redirect_uri"] == [f"{guarded.url}/signed-in"]


def test_groups_add_up() -> None:
    groups = {
        "one": ConsoleGroup(tenants=("a",), accounts=("x",)),
        "two": ConsoleGroup(tenants=("b",), accounts=()),
        "all": ConsoleGroup(),
        "drivers": ConsoleGroup(tenants=("a",)),
        "clerks": ConsoleGroup(accounts=("x",)),
    }
    auth = ConsoleAuth(issuer="https://id.example", client_id="w", base_url="https://w.example", groups=groups)
    both = viewer_of(auth, "n", ["one", "two"])
    assert both is not None
    assert both.tenants == frozenset({"a", "b"})
    assert both.accounts == frozenset({"x"})
    everything = viewer_of(auth, "n", ["one", "all"])
    assert everything is not None
    assert (everything.tenants, everything.accounts) == (None, None)
    assert viewer_of(auth, "n", []) is None
    limited = viewer_of(auth, "n", ["drivers", "clerks"])
    assert limited is not None
    assert (limited.tenants, limited.accounts) == (frozenset({"a"}), frozenset({"x"})), "not everything"


def test_without_sign_in_it_listens_on_loopback_only() -> None:
    with pytest.raises(ConsoleRefused, match="not loopback"):
        open_socket(ConsoleSettings(host="0.0.0.0", port=0))  # noqa: S104 - it is refused
