"""Servers of benchmarks: started and stopped together, and a stack whose cluster has the room of a big one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from deploy.local import LocalStack, PulsarSettings, Server, StackSettings

First = TypeVar("First", bound=Server)


@contextmanager
def running(first: First, *others: Server) -> Iterator[First]:
    """Starts each server once the one before answers, and stops the last one first."""
    servers: tuple[Server, ...] = (first, *others)
    with ExitStack() as stack:
        for server in servers:
            server.start()
            stack.callback(server.stop)
            server.wait()
        yield first


@contextmanager
def measured_stack(folder: Path, topology: str, heap_mb: int = 768, direct_mb: int = 768) -> Iterator[LocalStack]:
    """TLS, tokens and rights as in production; the Java virtual machines compile as on a machine of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "topology.toml"
    file.write_text(topology)
    settings = StackSettings(pulsar=PulsarSettings(heap_mb=heap_mb, direct_mb=direct_mb, full_compiler=True))
    with LocalStack(folder / "stack", topology=file, settings=settings) as stack:
        yield stack
