"""The folder of a local stack: where it is, and which daemons run with settings that lie in it.

A daemon writes one file into `daemons` of that folder and keeps it locked for its life. The kernel releases the lock
however the daemon ends, so a file without a lock is of one that did not stop in order.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from waybill.daemon.bounded_file import read_bounded

STACK_VARIABLE: Final = "WAYBILL_STACK"
DEFAULT_STACK: Final = Path("var/local")
MARK: Final = ".waybill-folder"
"""A file of each folder of a stack."""
_DAEMONS: Final = "daemons"
_MAX_BYTES: Final = 16_384
_MAX_DAEMONS: Final = 500
_MAX_TEXT: Final = 500
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._@-]+")


def stack_file(name: str) -> Path:
    """A file of the local stack in $WAYBILL_STACK, or in var/local."""
    return Path(os.environ.get(STACK_VARIABLE) or DEFAULT_STACK) / name


def stack_advice(option: str = "--config") -> str:
    """How to name a file that a command looked for in the folder of the stack."""
    return f"name a file with {option}, or the folder of a local stack with --folder or ${STACK_VARIABLE}"


def stack_settings(name: str) -> Callable[[], Path]:
    """The default of an option of a command: the settings of that name in the folder of the stack."""

    def found() -> Path:
        file = stack_file(name)
        if not file.is_file():
            import typer  # noqa: PLC0415 - daemons take from here what needs no command line

            raise typer.BadParameter(f"{file}: there is no such file; {stack_advice()}")
        return file

    return found


class Registration(NamedTuple):
    """A daemon that runs with settings of a stack, or that did not stop in order.

    `status`: HOST:PORT of its status, or "" if it serves none. `error`: why it ended, as far as it could tell.
    """

    program: str
    config: str
    pid: int
    status: str
    is_running: bool
    error: str = ""

    @property
    def command(self) -> str:
        return f"{self.program} --config {self.config}"


@contextmanager
def registered(program: str, config: Path, host: str = "", port: int = 0) -> Iterator[None]:
    """Registers this process while the block runs, if its settings lie in the folder of a stack.

    `host`, `port`: where it serves its health; 0: nowhere.
    A block that ends in order leaves nothing. What cannot be written is left out: no daemon fails because of it.
    """
    folder = config.absolute().parent
    if not (folder / MARK).is_file():
        yield
        return
    values = {"program": program, "config": str(config.absolute()), "pid": os.getpid()}
    values["status"] = f"{host}:{port}" if port else ""
    path = folder / _DAEMONS / f"{_NOT_IN_NAME.sub('-', program)}@{config.stem}.json"
    file = _opened(path)
    if file is None:
        yield
        return
    with file:
        _write(file, values)
        try:
            yield
        except BaseException as ended:
            if not _is_in_order(ended):
                _write(file, values | {"error": _reason(ended)})
                raise
            path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)


def _is_in_order(ended: BaseException) -> bool:
    if isinstance(ended, SystemExit):
        return ended.code in {None, 0}
    # typer's and click's own way to end with a status
    status = getattr(ended, "exit_code", None)
    return isinstance(ended, KeyboardInterrupt) or status == 0


def _reason(ended: BaseException) -> str:
    status = ended.code if isinstance(ended, SystemExit) else getattr(ended, "exit_code", None)
    return f"exit status {status}" if status is not None else f"{type(ended).__name__}: {ended}"[:_MAX_TEXT]


def _opened(path: Path) -> IO[str] | None:
    """The locked file; None if another process has it, or it cannot be written."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")  # noqa: PTH123, SIM115 - a descriptor
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _write(file: IO[str], values: dict[str, Any]) -> None:
    with suppress(OSError):
        file.seek(0)
        file.truncate()
        json.dump(values, file)
        file.flush()


def registrations(folder: Path) -> list[Registration]:
    """The daemons of a stack's folder that run or did not stop in order, by program and settings. Raises OSError."""
    found = []
    for path in sorted((folder / _DAEMONS).glob("*.json"))[:_MAX_DAEMONS]:
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            values = json.loads(read_bounded(path, _MAX_BYTES))
            texts = {name: str(values.get(name, "")) for name in ("program", "config", "status", "error")}
            found.append(Registration(**texts, pid=int(values["pid"]), is_running=_is_locked(path)))
    return found


def _is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
