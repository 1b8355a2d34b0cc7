"""Links that can be cut, healed and slowed, and the server that carries them."""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.errors import LinkError
from deploy.local.ports import PortBook
from deploy.local.proxy import Command, LinkConfig, LinkState, ProxyConfig
from deploy.local.server import Server

__all__ = ["CuttableLink", "CuttableLinks"]

_HOST = "127.0.0.1"
_CONTROL_S = 5.0


class CuttableLink:
    """One TCP link: connect to `port` and you reach `target`, while the link holds.

    It needs only the control port, so another process than the one that started the stack may use it.
    """

    def __init__(self, name: str, port: int, target: int, control: int) -> None:
        self.name, self.port, self.target, self.control = name, port, target, control

    def cut(self, *, silent: bool = False) -> LinkState:
        """Reset all connections and refuse new ones; `silent`: keep them and move no byte."""
        return self._send(Command(link=self.name, action="cut", silent=silent))

    def heal(self) -> LinkState:
        """Let traffic through again."""
        return self._send(Command(link=self.name, action="heal"))

    def delay(self, seconds: float) -> LinkState:
        """Hold every chunk for this long, each way (0 to 10 s)."""
        return self._send(Command(link=self.name, action="delay", delay_s=seconds))

    def state(self) -> LinkState:
        """Whether it is cut, its delay, its open connections and the bytes it carried."""
        return self._send(Command(link=self.name, action="state"))

    def _send(self, command: Command) -> LinkState:
        try:
            with socket.create_connection((_HOST, self.control), timeout=_CONTROL_S) as control:
                control.sendall(command.model_dump_json().encode() + b"\n")
                with control.makefile("rb") as answers:
                    answer = json.loads(answers.readline() or b"{}")
        except (OSError, ValueError) as broken:
            raise LinkError(self.name, f"its control on port {self.control} did not answer: {broken}") from broken
        if "state" not in answer:
            raise LinkError(self.name, str(answer.get("error", "empty answer")))
        return LinkState.model_validate(answer["state"])


class CuttableLinks(Server):
    """One small process that carries all links of a stack.

    `targets` maps the name of a link to the loopback port that it leads to; `links` has the links by name.
    """

    kind = "links"
    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(self, folder: Path, targets: Mapping[str, int], *, ports: PortBook | None = None) -> None:
        super().__init__("links", folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        book = ports or PortBook(self.folder / "ports.json")
        self.control = book.port("links.control")
        self.links = {
            name: CuttableLink(name, book.port(f"link.{name}"), target, self.control)
            for name, target in targets.items()
        }

    def addresses(self) -> dict[str, str]:
        """The port of each link."""
        return {name: f"{_HOST}:{link.port}" for name, link in self.links.items()}

    def prepare(self) -> None:
        """Write the proxy's configuration."""
        links = {name: LinkConfig(listen=link.port, target=link.target) for name, link in self.links.items()}
        self._config.write_text(ProxyConfig(control=self.control, links=links).model_dump_json(indent=2))

    def command(self) -> Sequence[str]:
        """The proxy module, run by this interpreter."""
        return [sys.executable, "-m", "deploy.local.proxy", str(self._config)]

    def probe(self) -> bool:
        """Whether the control answers for every link."""
        try:
            return all(link.state() is not None for link in self.links.values())
        except LinkError:
            return False

    @property
    def _config(self) -> Path:
        return self.folder / "links.json"
