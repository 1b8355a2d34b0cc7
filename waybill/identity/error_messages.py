"""What a command of this package says when something cannot be done: in words, never as a stack trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from waybill.identity.errors import IdentityError
from waybill.settings import SettingsError, file_fault, printable

__all__ = ["error_text", "errors_as_messages", "print_error"]

_errors = Console(stderr=True, highlight=False)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """An error of this package, of settings or of the disk, in one line; the exit status is 1."""
    try:
        yield
    except (IdentityError, SettingsError, OSError) as error:
        print_error(error_text(error))
        raise typer.Exit(1) from error


def error_text(error: Exception) -> str:
    """What happened, and to what: of a file its name first."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {file_fault(error)}"
    return str(error)


def print_error(text: str) -> None:
    """One line on stderr, never cut."""
    _errors.print(printable(text, "\n"), style="red", markup=False, soft_wrap=True)
