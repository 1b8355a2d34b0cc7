"""A command line that imports a command only when it is used: `waybill status` must not wait for Spark's imports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import typer

__all__ = ["LazyCommand", "command_line"]


@dataclass(frozen=True, kw_only=True)
class LazyCommand:
    """Where a sub-command lives, `module:attribute` (a Typer app or a plain function), and one line of help."""

    target: str
    help: str

    def exists(self) -> bool:
        """Whether the module is there; imports its packages only."""
        try:
            return find_spec(self.target.partition(":")[0]) is not None
        except ModuleNotFoundError:
            return False


def command_line(commands: Mapping[str, LazyCommand], arguments: Sequence[str], help_text: str) -> typer.Typer:
    """The app for these arguments: the command they name is real, of the others only the line of help.

    Commands whose module does not exist are not offered.
    """
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False, help=help_text)
    app.callback()(_root)
    for name, command in commands.items():
        if command.exists():
            _mount(app, name, command, real=next(iter(arguments), None) == name)
    return app


def _mount(app: typer.Typer, name: str, command: LazyCommand, *, real: bool) -> None:
    if not real:
        app.command(name, help=command.help)(_root)
        return
    module, _, attribute = command.target.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name, help=command.help)
    else:
        app.command(name)(found)


def _root() -> None:
    """Do nothing: the group itself, and the commands that were not asked for."""
