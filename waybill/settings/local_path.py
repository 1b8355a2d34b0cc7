"""A path of this machine as people write it: `~` is expanded, and what only looks like a path is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

__all__ = ["PathElsewhere", "local_path"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)")
_VARIABLE: Final = re.compile(r"\$\{[^}/]*\}?|(?:(?<=/)|^)\$[A-Za-z_]\w*")


def local_path(text: str) -> str:
    """The path that a text names, `~` and `~USER` expanded; raises ValueError.

    `dbfs:/x` would be made a folder named `dbfs:`, `$HOME/x` one named `$HOME`: neither is ever meant.
    """
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is no path")
    if text != text.strip():
        raise ValueError(f"the path {text!r} begins or ends with a blank")
    if found := _SCHEME.match(text):
        raise ValueError(f"{text!r} begins with {found[1]}, and a path of this machine is needed")
    if found := _VARIABLE.search(text):
        raise ValueError(f"{text!r} has {found[0]}, and no variable is expanded: write the path")
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise ValueError(f"{text!r}: nobody has the home folder {text.partition('/')[0]}: write the path") from None


def _path_elsewhere(text: str) -> str:
    if text.startswith("~"):
        raise ValueError(f"{text!r} is on other machines, whose home folders are not known: write the path")
    return text and local_path(text)


PathElsewhere = Annotated[str, AfterValidator(_path_elsewhere)]
"""A path of other machines, or none (""): as `local_path`, and `~` is refused."""
