"""Questions whether a server does its work now, as data: who finds them in the state of a stack can ask them too."""

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Annotated, Literal

import httpx
from pydantic import Field

from deploy.local.errors import LinkControlError
from deploy.local.link import CuttableLink
from waybill.daemon.tls import TlsSettings, tls_context
from waybill.settings import Settings

__all__ = ["ASK_S", "Health", "HttpHealth", "LinksHealth", "MqttHealth", "SparkHealth", "ask_all", "http_health"]

ASK_S = 6.0
"""How long servers that are asked side by side may take in all; a little more than one question may."""
_HTTP_S, _MQTT_S = 5.0, 2.0
_HOST = "127.0.0.1"
# An MQTT 3.1.1 CONNECT with a clean session and the client id "probe"; the answer must be CONNACK with code 0.
_CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05probe"
_CONNACK = b"\x20\x02\x00\x00"


class HttpHealth(Settings):
    """Whether a GET of each address succeeds, each within five seconds; with a token and an authority where given."""

    kind: Literal["http"] = "http"
    urls: tuple[str, ...]
    token_file: Path | None = None
    tls_ca: Path | None = None

    def __call__(self) -> bool:
        """Ask now."""
        try:
            token = self.token_file and self.token_file.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"} if token else None
            client = _client(self.tls_ca)
            return all(client.get(url, headers=headers).is_success for url in self.urls)
        except (httpx.HTTPError, OSError):
            return False


class MqttHealth(Settings):
    """Whether an MQTT broker answers a CONNECT; one that is not plain is asked with `tls`.

    Without these files all that can be asked is whether it accepts a connection.
    """

    kind: Literal["mqtt"] = "mqtt"
    port: int
    is_plain: bool = True
    tls: TlsSettings | None = None

    def __call__(self) -> bool:
        """Ask now."""
        try:
            with socket.create_connection((_HOST, self.port), timeout=_MQTT_S) as connection:
                if self.is_plain:
                    return _answers(connection)
                # Who has no certificate is not answered.
                if self.tls is None:
                    return True
                with tls_context(self.tls).wrap_socket(connection, server_hostname=_HOST) as secure:
                    return _answers(secure)
        except (OSError, ValueError):
            return False


def _answers(connection: socket.socket) -> bool:
    connection.sendall(_CONNECT)
    return connection.recv(len(_CONNACK)) == _CONNACK


class LinksHealth(Settings):
    """Whether the control of the links answers for each of them."""

    kind: Literal["links"] = "links"
    control: int
    secret: str
    names: tuple[str, ...]

    def __call__(self) -> bool:
        """Ask now."""
        try:
            # Only the control is asked, so where the link listens and leads does not matter.
            return all(CuttableLink(name, 0, 0, self.control, self.secret).state() is not None for name in self.names)
        except LinkControlError:
            return False


class SparkHealth(Settings):
    """Whether a Spark master or worker answers with a JSON object in which `field` is `value`."""

    kind: Literal["spark"] = "spark"
    url: str
    field: str
    value: str

    def __call__(self) -> bool:
        """Ask now."""
        try:
            answer = _client().get(self.url)
            return answer.is_success and answer.json().get(self.field) == self.value
        except (httpx.HTTPError, ValueError, AttributeError):
            return False


Health = Annotated[HttpHealth | MqttHealth | LinksHealth | SparkHealth, Field(discriminator="kind")]


def http_health(url: str) -> HttpHealth:
    """The question whether a GET of this URL succeeds."""
    return HttpHealth(urls=(url,))


def ask_all(questions: Mapping[str, Callable[[], bool]], timeout_s: float = ASK_S) -> dict[str, bool]:
    """The answer to each question, asked side by side; False for one that did not come in time."""
    answers: dict[str, bool] = {}

    def ask(name: str, question: Callable[[], bool]) -> None:
        answers[name] = question()

    # Daemons: a command that has said what it knows does not wait for one that is late.
    threads = [Thread(target=ask, args=each, name=f"ask-{each[0]}", daemon=True) for each in questions.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: answers.get(name, False) for name in questions}


@cache
def _client(tls_ca: Path | None = None) -> httpx.Client:
    # One for all questions: making a client takes 27 ms of CPU, and a server is asked five times a second while it
    # starts. No connection is kept: the server at its other end may have been killed since.
    verify = True if tls_ca is None else ssl.create_default_context(cafile=str(tls_ca))
    return httpx.Client(timeout=_HTTP_S, limits=httpx.Limits(max_keepalive_connections=0), verify=verify)
