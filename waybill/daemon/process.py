"""Memory, shutdown and `--version` of a process."""

import resource
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

if TYPE_CHECKING:
    import typer

# Memory of this process.


def resident_bytes() -> int:
    """Resident memory; 0 where the machine does not provide it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


# Closing connections to servers that may not answer.

CLOSE_S: Final = 8.0
"""Slightly more than the time-out of a Pulsar reader."""


def close_within(closings: Iterable[Callable[[], object]], bound_s: float = CLOSE_S) -> bool:
    """Call all functions at once, each in a thread; whether they ended in time. The others are left to the process's
    exit.
    """
    end_s = time.monotonic() + bound_s
    threads = [threading.Thread(target=one, name="closes", daemon=True) for one in closings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def add_version_option(app: "typer.Typer", program: str) -> None:
    """Add the option `--version`, which prints the program's name and the distribution's version."""
    import typer  # noqa: PLC0415 - executors and daemons take from here what needs no command line

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {version_of('fleet-waybill')}")
            raise typer.Exit

    @app.callback()
    def root(
        *,
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=show, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass
