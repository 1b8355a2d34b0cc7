"""A TCP proxy whose links can be cut, healed and slowed: what the process behind `CuttableLinks` does.

A control connection carries one JSON line each way, of MAX_LINE_BYTES, within five seconds. Bounds of a link: 64 kB a
chunk and `_CHUNKS` chunks waiting in each direction.
"""

import asyncio
import contextlib
import hmac
import json
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationError

from waybill.settings import Settings, one_line

__all__ = [
    "MAX_LINE_BYTES",
    "LinkCommand",
    "LinkConfig",
    "ProxyConfig",
    "ProxyLink",
    "ProxyLinkState",
    "answer_command",
    "serve",
]

_HOST = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_CHUNKS = 256
_CONNECT_S = 5.0
_CONTROL_S = 5.0
MAX_LINE_BYTES = 4096
"""Of the control, each way."""


class LinkConfig(Settings):
    """Where one link listens and leads to: loopback ports."""

    listen: int
    target: int


class ProxyConfig(Settings):
    """All links of one proxy process."""

    control: int
    secret: str
    links: dict[str, LinkConfig]


class LinkCommand(Settings):
    """One line to the control port."""

    link: str
    secret: str
    action: Literal["cut", "heal", "delay", "state"]
    silent: bool = False
    delay_s: float = Field(0.0, ge=0, le=10)


class ProxyLinkState(Settings):
    """What a link does now, and what it carried."""

    cut: bool
    silent: bool
    delay_s: float
    connections: int
    bytes_forward: int
    bytes_back: int


class ProxyLink:
    """One listening port that leads to another.

    `cut` resets all connections and refuses new ones, as when a gateway drops its table; a *silent* cut keeps the
    connections and moves no byte, as when a radio is lost: only a time-out of the ends notices. After `heal` a silent
    link goes on where it stopped, as TCP would after retransmission.
    """

    def __init__(self, name: str, config: LinkConfig) -> None:
        self.name = name
        self._config = config
        self._open = asyncio.Event()
        self._open.set()
        self._cut = self._silent = False
        self._delay_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = [0, 0]

    async def serve(self) -> None:
        """Listen until cancelled."""
        server = await asyncio.start_server(self._accept, _HOST, self._config.listen, limit=_CHUNK_BYTES)
        async with server:
            await server.serve_forever()

    def execute(self, command: LinkCommand) -> ProxyLinkState:
        """Carry out one command and say how the link is now."""
        if command.action == "cut":
            self._cut, self._silent = True, command.silent
            self._open.clear()
            if not command.silent:
                for task in self._tasks:
                    task.cancel()
        elif command.action == "heal":
            self._cut = self._silent = False
            self._open.set()
        elif command.action == "delay":
            self._delay_s = command.delay_s
        return self.state()

    def state(self) -> ProxyLinkState:
        """What the link does now."""
        return ProxyLinkState(
            cut=self._cut,
            silent=self._silent,
            delay_s=self._delay_s,
            connections=len(self._tasks),
            bytes_forward=self._bytes[0],
            bytes_back=self._bytes[1],
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut and not self._silent:
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
            far_reader, far_writer = await asyncio.open_connection(_HOST, self._config.target, limit=_CHUNK_BYTES)
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, 0)),
            asyncio.create_task(self._pump(far_reader, writer, 1)),
        ]
        try:
            # The first direction that ends closes the connection: MQTT and Pulsar know no half-open use.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            # close() still sends what is buffered, which a cut line would not: a cut is a reset.
            far_writer.transport.abort() if self._cut else far_writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: int) -> None:
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
                self._bytes[direction] += len(chunk)
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
            await waiting.put((clock() + self._delay_s, chunk))
            if not chunk:
                return


async def _control(
    links: dict[str, ProxyLink], secret: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    # A line longer than the reader's limit is a ValueError.
    with contextlib.suppress(OSError, ValueError, TimeoutError):
        async with asyncio.timeout(_CONTROL_S):
            writer.write(answer_command(links, await reader.readline(), secret))
            await writer.drain()
    writer.close()


def answer_command(links: Mapping[str, ProxyLink], line: bytes, secret: str) -> bytes:
    """Carries out the command of a line; the line that answers it: the link's state, or why it was refused."""
    try:
        command = LinkCommand.model_validate_json(line)
        if not hmac.compare_digest(command.secret.encode(), secret.encode()):
            return json.dumps({"error": "refused: the secret in stack.json is another one"}).encode() + b"\n"
        answer: dict[str, object] = {"state": links[command.link].execute(command).model_dump()}
    except (ValidationError, KeyError) as refused:
        answer = {"error": one_line(f"refused: {refused}")}
    return json.dumps(answer).encode() + b"\n"


async def serve(config: ProxyConfig) -> None:
    """Carry all links until cancelled."""
    links = {name: ProxyLink(name, link) for name, link in config.links.items()}
    async with asyncio.TaskGroup() as group:
        for link in links.values():
            group.create_task(link.serve())
        control = await asyncio.start_server(
            lambda r, w: _control(links, config.secret, r, w), _HOST, config.control, limit=MAX_LINE_BYTES
        )
        group.create_task(control.serve_forever())
