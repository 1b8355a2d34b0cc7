"""Named files: paths, regular files only, and TOML that is bounded before it is parsed."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

from pydantic import AfterValidator

# File errors with a hint for the operator.


def file_fault(error: OSError | ValueError) -> str:
    """Why a file cannot be used, without its name. ValueError: its content is wrong."""
    match error:
        case FileNotFoundError():
            return "there is no such file or folder"
        case IsADirectoryError():
            return "it is a folder: name a file in it"
        case NotADirectoryError():
            return "what stands before its last part is not a folder"
        case PermissionError():
            return "this user has no right to it"
        case OSError(strerror=str() as problem) if problem:
            return problem
        case _:
            return f"{error}{'; save it as UTF-8' if isinstance(error, UnicodeDecodeError) else ''}"


# Paths in settings: `~` is expanded, and anything else that only looks like a path is refused.

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)")
_VARIABLE: Final = re.compile(r"\$\{[^}/]*\}?|(?:(?<=/)|^)\$[A-Za-z_]\w*")


def local_path(text: str) -> str:
    """The path of a text, with `~` and `~USER` expanded. Raises ValueError.

    `dbfs:/x` would become a folder named `dbfs:`, and `$HOME/x` one named `$HOME`.
    """
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is not a path")
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
        raise ValueError(f"{text!r}: no user has the home folder {text.partition('/')[0]}: write the path") from None


def _path_elsewhere(text: str) -> str:
    if text.startswith("~"):
        raise ValueError(f"{text!r} is on other machines, whose home folders are not known: write the path")
    return text and local_path(text)


PathElsewhere = Annotated[str, AfterValidator(_path_elsewhere)]
"""A path of other machines, or none (""): as `local_path`, and `~` is refused."""


# Opening files: a pipe is refused, because reading it would block.

_OWN: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Files that the shell hands over, as for `<(...)`; these may block."""
_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFile(OSError):
    """Something of this name is not a file; `filename` is the name, `strerror` says what it is."""


def open_file(path: Path) -> BinaryIO:
    """A file opened for reading; never blocks. Raises NotAFile, OSError (IsADirectoryError for a folder).

    A pipe is accepted only if the shell hands it over: `/dev/stdin`, `<(...)`.
    """
    if str(path).startswith(_OWN):
        return path.open("rb")
    # Before it is opened, which is an act to some devices.
    _check(path, path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # Once more: another one may be there by now.
        _check(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path) -> bytes:
    """Raises NotAFile, OSError."""
    with open_file(path) as file:
        return file.read()


def _check(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise NotAFile(errno.EINVAL, f"it is {kind}, and no file", str(path))


MAX_TOML_BYTES = 1 << 20
MAX_PUSHED_BYTES = 16 << 10
"""Of settings for a device. The parser takes up to 1.3 µs for a byte of dotted keys."""
MAX_TOML_DEPTH = 16
"""Brackets inside brackets, and dots in one key."""

# Strings and comments as one token each, as the parser reads them; a bracket inside one is no bracket. A string that
# does not end is a token too, and no part gives back what it took: nothing is read twice. Whoever looks for the line of
# a key reads by it, too.
TOML_TOKEN = re.compile(
    r'"""(?:[^\\"]|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^\\"\n]|\\[^\n])*+"?'
    r"|'[^'\n]*+'?|#[^\n]*+|[\[{\]}.=,\n]",
    re.DOTALL,
)


def parse_toml(
    text: str, max_bytes: int = MAX_TOML_BYTES, *, parse_float: Callable[[str], Any] = float
) -> dict[str, Any]:
    """The tables of a TOML text; `parse_float` makes its numbers with a point. Raises ValueError."""
    # A lone surrogate has no UTF-8; the parser reports it.
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise ValueError(f"{size} bytes, {max_bytes} are allowed")
    if _depth(text) > MAX_TOML_DEPTH:
        raise ValueError(f"nested deeper than {MAX_TOML_DEPTH}")
    tables = tomllib.loads(text, parse_float=parse_float)
    _refuse_large_integers(tables)
    return tables


def _refuse_large_integers(value: Any) -> None:
    """TOML's integers have 64 bits; Python's parser accepts longer ones."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _refuse_large_integers(one)
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("an integer of more than 64 bits")


def _depth(text: str) -> int:
    depth = dots = deepest = 0
    for match in TOML_TOKEN.finditer(text):
        piece = match[0]
        if piece in "[{":
            depth, dots = depth + 1, 0
        elif piece in "]}":
            depth, dots = max(0, depth - 1), 0
        elif piece == ".":
            dots += 1
        elif piece in "=,\n":
            dots = 0
        deepest = max(deepest, depth, dots)
    return deepest
