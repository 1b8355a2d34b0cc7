"""A token that was never published opens nothing: where a command is refused, its file does not stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import typer

from identity.device_answers import EXIT_REFUSED

__all__ = ["removes_refused_token"]

_NOT_PUBLISHED = (2, EXIT_REFUSED, os.EX_CONFIG)
P = ParamSpec("P")


def removes_refused_token(command: Callable[P, None]) -> Callable[P, None]:
    """The command, which takes away the new `token_file` that it was given where nothing was published."""

    @wraps(command)
    def run(*arguments: P.args, **more: P.kwargs) -> None:
        file = more.get("token_file")
        is_new = isinstance(file, Path) and not file.exists()
        try:
            command(*arguments, **more)
        except (typer.Exit, typer.BadParameter) as ended:
            # Of what could not be reached nobody knows whether it was published.
            if is_new and isinstance(file, Path) and ended.exit_code in _NOT_PUBLISHED:
                file.unlink(missing_ok=True)
            raise

    return run
