"""The server that carries all links of a stack."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.link import CuttableLink
from deploy.local.ports import PortBook
from deploy.local.proxy import LinkConfig, ProxyConfig
from deploy.local.server import Server
from deploy.local.server_health import Health, LinksHealth
from waybill.daemon.durable_file import replace_durably

__all__ = ["CuttableLinks"]

_HOST = "127.0.0.1"


class CuttableLinks(Server):
    """One small process that carries all links of a stack.

    `targets` maps the name of a link to the loopback port that it leads to; `links` has the links by name.
    """

    kind = "links"
    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(
        self, folder: Path, targets: Mapping[str, int], *, name: str = "links", ports: PortBook | None = None
    ) -> None:
        super().__init__(name, folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = ports or PortBook(self.folder / "ports.json")
        self.control = self._ports.port(f"{name}.control")
        self._secret = secrets.token_urlsafe(32)
        self.links = {
            name: CuttableLink(name, self._ports.port(f"link.{name}"), target, self.control, self._secret)
            for name, target in targets.items()
        }

    def addresses(self) -> dict[str, str]:
        """The port of each link."""
        return {name: f"{_HOST}:{link.port}" for name, link in self.links.items()}

    def prepare(self) -> None:
        """Write the proxy's configuration."""
        links = {name: LinkConfig(listen=link.port, target=link.target) for name, link in self.links.items()}
        config = ProxyConfig(control=self.control, secret=self._secret, links=links)
        replace_durably(self._config, config.model_dump_json(indent=2).encode(), mode=0o600)

    def command(self) -> Sequence[str]:
        """The proxy's process, run by this interpreter."""
        return [sys.executable, "-m", "deploy.local.proxy_process", str(self._config)]

    def health(self) -> Health:
        """Whether the control answers for every link."""
        return LinksHealth(control=self.control, secret=self._secret, names=tuple(self.links))

    @property
    def _config(self) -> Path:
        return self.folder / "links.json"
