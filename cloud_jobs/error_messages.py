"""What a command says when a job stops on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cloud_jobs.errors import CloudError
from waybill.settings import printable

__all__ = ["cloud_errors_as_messages"]


@contextmanager
def cloud_errors_as_messages(program: str) -> Iterator[None]:
    """A `CloudError` is one line on standard error, which begins with `program`, and its own exit status."""
    try:
        yield
    except CloudError as error:
        typer.echo(printable(f"{program}: {error}", "\n"), err=True)
        raise typer.Exit(error.exit_status) from error
