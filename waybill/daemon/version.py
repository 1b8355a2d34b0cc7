"""`--version` of every command."""

from importlib.metadata import version as version_of
from typing import Annotated

import typer

__all__ = ["add_version_option"]


def add_version_option(app: typer.Typer, program: str) -> None:
    """Give a program the option `--version`, which prints its name and the distribution's version, and ends it."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {version_of('fleet-waybill')}")
            raise typer.Exit

    @app.callback()
    def root(
        *,
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=show, help="Print the version, and end.")
        ] = False,
    ) -> None:
        pass
