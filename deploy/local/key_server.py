"""The server from which the clusters get the keys that they check tokens with."""

import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local.mosquitto import TlsFiles
from deploy.local.server import Server
from deploy.local.server_health import Health, HttpHealth

__all__ = ["TokenKeyServer"]


class TokenKeyServer(Server):
    """A small HTTPS server of what a token issuer has published."""

    kind = "keys"
    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(self, folder: Path, port: int, tls: TlsFiles, published: Path) -> None:
        super().__init__("token-keys", folder)
        self.port, self._tls, self._published = port, tls, published

    @property
    def url(self) -> str:
        """What tokens name as their issuer."""
        return f"https://127.0.0.1:{self.port}"

    def addresses(self) -> dict[str, str]:
        """The issuer's URL."""
        return {"url": self.url}

    def command(self) -> Sequence[str]:
        """A process that imports nothing of ours: it needs 20 MB."""
        program = Path(__file__).with_name("key_server_process.py")
        files = self._tls.certificate, self._tls.key, self._published
        return [sys.executable, "-I", str(program), str(self.port), *map(str, files)]

    def health(self) -> Health:
        """Whether it serves the keys to who trusts the authority."""
        return HttpHealth(urls=(f"{self.url}/keys.json",), tls_ca=self._tls.ca)
