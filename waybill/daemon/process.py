"""Memory, shutdown and `--version` of a process."""

import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


# What commands share.


def error_text(error: Exception) -> str:
    """The text of an error; of an OSError, the file and what is wrong with it."""
    from waybill.settings import file_fault  # noqa: PLC0415 - `waybill --help` needs no settings

    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {file_fault(error)}"
    return str(error)


@contextmanager
def errors_as_messages(program: str, *expected: type[Exception]) -> Iterator[None]:
    """Prints wrong settings (exit status 78), and expected errors and OSError (1), instead of a traceback."""
    import typer  # noqa: PLC0415 - as below

    from waybill.settings import SettingsError, printable  # noqa: PLC0415 - as above

    known: tuple[type[Exception], ...] = (*expected, OSError)
    try:
        yield
    except SettingsError as error:
        typer.echo("\n".join(error.lines), err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except known as error:
        typer.echo(printable(f"{program}: {error_text(error)}", "\n"), err=True)
        raise typer.Exit(1) from error


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
