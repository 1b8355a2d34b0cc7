"""TCP links that can be cut, healed and slowed; one process carries all links of a stack."""

import asyncio
import contextlib
import hmac
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from deploy.local.errors import LinkControlError
from deploy.local.ports import PortBook
from deploy.local.server import Server, port_is_open
from waybill.daemon.durable_file import replace_durably
from waybill.settings import Settings, one_line

# The proxy.

_HOST = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_CHUNKS = 256
_CONNECT_S = 5.0
_CONTROL_S = 5.0
MAX_LINE_BYTES = 4096
"""Of the control, each way."""


class LinkCommand(Settings):
    link: str
    secret: str
    action: Literal["cut", "heal", "delay", "state"]
    silent: bool = False
    delay_s: float = Field(0.0, ge=0, le=10)


class LinkState(BaseModel):
    cut: bool = False
    silent: bool = False
    delay_s: float = 0.0
    connections: int = 0
    bytes_carried: int = 0


class LinkAnswer(BaseModel):
    state: LinkState | None = None
    error: str = "empty answer"


class ProxyLink:
    """One listening port that leads to another.

    `cut` resets all connections and refuses new ones, as when a gateway drops its table; a *silent* cut keeps the
    connections and moves no byte, as when a radio is lost: only a time-out of the ends notices. After `heal` a silent
    link continues where it stopped, as TCP would after retransmission.
    """

    def __init__(self, port: int, target: int) -> None:
        self._port, self._target = port, target
        self._open = asyncio.Event()
        self._open.set()
        self._state = LinkState()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Listen until cancelled."""
        server = await asyncio.start_server(self._accept, _HOST, self._port, limit=_CHUNK_BYTES)
        async with server:
            await server.serve_forever()

    def execute(self, command: LinkCommand) -> LinkState:
        """Carry out one command; returns the new state."""
        state = self._state
        if command.action == "cut":
            state.cut, state.silent = True, command.silent
            self._open.clear()
            if not command.silent:
                for task in self._tasks:
                    task.cancel()
        elif command.action == "heal":
            state.cut = state.silent = False
            self._open.set()
        elif command.action == "delay":
            state.delay_s = command.delay_s
        state.connections = len(self._tasks)
        return state

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._state.cut and not self._state.silent:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                await task
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        # Behind the wait: in a silent cut a new connection is neither refused nor led on, as on a dead radio link.
        async with asyncio.timeout(_CONNECT_S):
            far_reader, far_writer = await asyncio.open_connection(_HOST, self._target, limit=_CHUNK_BYTES)
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        ]
        try:
            # The first direction that ends closes the connection: MQTT and Pulsar know no half-open use.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            # close() still sends what is buffered, which a cut line would not: a cut is a reset.
            far_writer.transport.abort() if self._state.cut else far_writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
        feeder = asyncio.create_task(self._feed(source, waiting))
        clock = asyncio.get_running_loop().time
        try:
            while True:
                due, chunk = await waiting.get()
                if not chunk:
                    return
                if (early := due - clock()) > 0:
                    await asyncio.sleep(early)
                # After the delay: a cut in the meantime holds this chunk too.
                await self._open.wait()
                sink.write(chunk)
                self._state.bytes_carried += len(chunk)
                # A slow reader holds the pump, and then the full queue the feeder: back pressure reaches the sender.
                await sink.drain()
        finally:
            feeder.cancel()

    async def _feed(self, source: asyncio.StreamReader, waiting: "asyncio.Queue[tuple[float, bytes]]") -> None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                chunk = await source.read(_CHUNK_BYTES)
            except OSError:
                # A reset is passed on as an end, after the chunks that came before it.
                chunk = b""
            # Due by the time of its arrival: chunks wait side by side, so a delay does not lower the throughput.
            await waiting.put((clock() + self._state.delay_s, chunk))
            if not chunk:
                return


async def _control(
    links: Mapping[str, ProxyLink], secret: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    # A line longer than the reader's limit is a ValueError.
    with contextlib.suppress(OSError, ValueError, TimeoutError):
        async with asyncio.timeout(_CONTROL_S):
            writer.write(answer_command(links, secret, await reader.readline()).model_dump_json().encode() + b"\n")
            await writer.drain()
    writer.close()


def answer_command(links: Mapping[str, ProxyLink], secret: str, line: bytes) -> LinkAnswer:
    """Carry out the command of a line; returns the link's state, or why it was refused."""
    try:
        command = LinkCommand.model_validate_json(line)
        if not hmac.compare_digest(command.secret.encode(), secret.encode()):
            return LinkAnswer(error="refused: the secret in stack.json is another one")
        return LinkAnswer(state=links[command.link].execute(command))
    except (ValidationError, KeyError) as refused:
        return LinkAnswer(error=one_line(f"refused: {refused}"))


async def serve(config: Sequence["CuttableLink"]) -> None:
    """Carry links, which share their control port and secret, until cancelled."""
    links = {link.name: ProxyLink(link.port, link.target) for link in config}
    control, secret = config[0].control, config[0].secret
    async with asyncio.TaskGroup() as group:
        for link in links.values():
            group.create_task(link.serve())
        server = await asyncio.start_server(
            lambda r, w: _control(links, secret, r, w), _HOST, control, limit=MAX_LINE_BYTES
        )
        group.create_task(server.serve_forever())


def serve_file(config: str) -> None:
    """The process behind `CuttableLinks`; `config`: a file of its links."""
    asyncio.run(serve(_LINKS.validate_json(Path(config).read_bytes())))


# The control client and the supervised process.


class CuttableLink(Settings):
    """One TCP link: connect to `port` and you reach `target`, while the link holds.

    It needs only the control port and its secret, so another process of the stack's owner may use it.
    """

    name: str
    port: int
    target: int
    control: int
    secret: str

    def cut(self, *, silent: bool = False) -> LinkState:
        """Reset all connections and refuse new ones; `silent`: keep them and move no byte."""
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="cut", silent=silent))

    def heal(self) -> LinkState:
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="heal"))

    def delay(self, seconds: float) -> LinkState:
        """Hold every chunk for this long, each way (0 to 10 s)."""
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="delay", delay_s=seconds))

    def state(self) -> LinkState:
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="state"))

    def _send(self, command: LinkCommand) -> LinkState:
        try:
            with socket.create_connection((_HOST, self.control), timeout=_CONTROL_S) as control:
                control.sendall(command.model_dump_json().encode() + b"\n")
                with control.makefile("rb") as answers:
                    answer = LinkAnswer.model_validate_json(answers.readline(MAX_LINE_BYTES))
        # Another process may have the port now: its answer is a ValidationError.
        except (OSError, ValidationError) as broken:
            reason = one_line(f"its control on port {self.control} did not answer: {broken}")
            raise LinkControlError(self.name, reason) from broken
        if answer.state is None:
            raise LinkControlError(self.name, answer.error)
        return answer.state


_LINKS = TypeAdapter(list[CuttableLink])


class CuttableLinks(Server):
    """One small process that carries all links of a stack.

    `targets` maps the name of a link to the loopback port that it leads to; `links` has the links by name.
    """

    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(
        self, folder: Path, targets: Mapping[str, int], *, name: str = "links", ports: PortBook | None = None
    ) -> None:
        super().__init__(name, folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        book = ports or PortBook(self.folder / "ports.json")
        self._control = book.port(f"{name}.control")
        secret = secrets.token_urlsafe(32)
        self._config = self.folder / "links.json"
        self.links = {
            link: CuttableLink(
                name=link, port=book.port(f"link.{link}"), target=target, control=self._control, secret=secret
            )
            for link, target in targets.items()
        }

    def addresses(self) -> dict[str, str]:
        return {name: f"{_HOST}:{link.port}" for name, link in self.links.items()}

    def prepare(self) -> None:
        replace_durably(self._config, _LINKS.dump_json([*self.links.values()]), mode=0o600)

    def command(self) -> Sequence[str]:
        run = "import sys; from deploy.local.links import serve_file; serve_file(sys.argv[1])"
        return [sys.executable, "-c", run, str(self._config)]

    def probe(self) -> bool:
        return port_is_open(self._control)
