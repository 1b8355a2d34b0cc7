"""Whether the executors can run the jobs: their Python, its packages, our own code, and the folders they share with us.

`inspect_executor` runs on an executor and imports nothing but the standard library before it has looked.
"""

from __future__ import annotations

import os
import platform
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from cloud_jobs.errors import ExecutorsNotReady

EXECUTOR_PACKAGES: Final = (
    "deltalake",
    "httpx",
    "msgpack",
    "numpy",
    "pandas",
    "pulsar",
    "pyarrow",
    "pydantic",
    "pyproj",
    "shapely",
    "structlog",
    "tenacity",
)
"""What the project's code imports on an executor beside Spark's own: packages of the extra `cloud`."""

_TASKS_PER_CORE = 2
_REASON_CHARACTERS = 300
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\d+\.\d+) than that in driver: (\d+\.\d+)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^\n]*')
_MISSING = re.compile(r"ModuleNotFoundError: ([^\n]+)")


class ExecutorReport(NamedTuple):
    """What one executor says of itself. `failed`: package and why; `project`: the file that our code came from."""

    host: str
    python: str
    failed: tuple[tuple[str, str], ...]
    project: str
    unseen: tuple[str, ...]


def inspect_executor(packages: Sequence[str], marks: Sequence[str]) -> ExecutorReport:
    """Imports the packages and looks for the marks, on the machine where it runs."""
    failed = []
    for package in packages:
        try:
            import_module(package)
        except Exception as error:  # noqa: BLE001 - what a broken package raises is its own
            failed.append((package, f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]))
    unseen = tuple(mark for mark in marks if not Path(mark).exists())
    return ExecutorReport(platform.node(), platform.python_version(), tuple(failed), __file__, unseen)


def report_faults(reports: Iterable[ExecutorReport], *, archive: str) -> list[str]:
    """What keeps these executors from running the jobs, one sentence for each fault. `archive`: our zip's name."""
    found: dict[str, None] = {}
    for one in sorted(set(reports)):
        for package, reason in one.failed:
            found[f"{one.host}: the package {package} cannot be imported ({reason})"] = None
        if archive and archive not in Path(one.project).parts:
            found[f"{one.host}: runs the project of {Path(one.project).parents[1]}, not what the driver sent"] = None
        for mark in one.unseen:
            found[f"{one.host}: does not see the driver's folder {Path(mark).parent}: share it, or use S3"] = None
    return list(found)


def explain_failure(text: str) -> str:
    """Why a task that only looks around failed, from Spark's words: the first of the causes that are known."""
    if match := _OTHER_PYTHON.search(text):
        return f"another Python than the driver's: Python {match[1]} on an executor, {match[2]} in the driver"
    if match := _NO_PYTHON.search(text):
        return f"the executors have no interpreter {match[1]}: set spark.python to one that every machine has"
    if match := _MISSING.search(text):
        return f"the executors' Python is not complete: {match[1]}"
    return f"the executors run no task: {' '.join(text.split())[:_REASON_CHARACTERS]}"


def check_executors(context: Any, *, archive: str, folders: Sequence[Path], timeout_s: float) -> list[ExecutorReport]:
    """Asks every executor that is there. Raises ExecutorsNotReady with all faults, or when none answers in time."""
    slots = _TASKS_PER_CORE * int(context.defaultParallelism)
    with _marks_in(folders) as marks:
        wanted = EXECUTOR_PACKAGES, tuple(map(str, marks))
        # In the first round of tasks each free core gets one, so each executor that is there is asked.
        tasks = context.parallelize(range(slots), slots).map(lambda _: inspect_executor(*wanted))
        reports: list[ExecutorReport] = _collect(context, tasks.collect, timeout_s)
    if faults := report_faults(reports, archive=archive):
        raise ExecutorsNotReady(faults)
    return sorted(set(reports))


def _collect(context: Any, collect: Callable[[], Any], timeout_s: float) -> Any:
    group, late = f"executor-check-{uuid4().hex}", threading.Event()

    def cancel() -> None:
        late.set()
        context.cancelJobGroup(group)

    timer = threading.Timer(timeout_s, cancel)
    timer.daemon = True
    context.setJobGroup(group, "are the executors ready")
    timer.start()
    try:
        return collect()
    except Exception as error:
        if late.is_set():
            said = f"no executor answered within {timeout_s:g} s; has the cluster free cores and memory for one?"
            raise ExecutorsNotReady([said]) from error
        raise ExecutorsNotReady([explain_failure(str(error))]) from error
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)


@contextmanager
def _marks_in(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """A file in each folder that is there, removed on leaving: a folder of the same name elsewhere has it not."""
    marks = [folder.absolute() / f".seen-by-executors-{uuid4().hex}" for folder in folders]
    try:
        for mark in marks:
            mark.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield marks
    finally:
        for mark in marks:
            with suppress(OSError):
                mark.unlink()
