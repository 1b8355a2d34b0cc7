"""The Python that Spark starts on the driver's machine, with the code of tasks already imported.

Spark forks a process for each task, and for each micro-batch that a source plans. Each would spend seconds of CPU on
imports; here the parent has imported everything. PySpark is taken from its installation, because Spark's archives have
no compiled code.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["IMPORTS", "SOURCE", "imported_before", "interpreter", "main"]

IMPORTS: Final = "WAYBILL_SPARK_IMPORTS"
"""The environment variable that lists the modules of tasks, separated by commas."""
SOURCE: Final = "cloud_jobs.pulsar_source"
"""The module that plans the micro-batches of a stream."""
_COMMAND: Final = "cloud-jobs-python"
_FORKS: Final = "pyspark.daemon"
_TASKS: Final = "pyspark.worker"


def interpreter() -> str:
    """The command that Spark starts as Python, or our own interpreter if the project is not installed."""
    command = Path(sys.executable).with_name(_COMMAND)
    return str(command) if os.access(command, os.X_OK) else sys.executable


def main() -> None:
    """Runs `cloud-jobs-python -m MODULE …` as `python -m MODULE …`; other arguments go to `python`."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - our own interpreter
    # as `python -m` has it: the folder where it is started, not the command's
    sys.path[:] = [str(Path.cwd()), *_without_archives(sys.path[1:])]
    for name in imported_before(arguments[1:], os.environ):
        importlib.import_module(name)
    module, sys.argv[:] = arguments[1], arguments[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _without_archives(path: Sequence[str]) -> list[str]:
    """The path without the archives of PySpark, Py4J and Spark, which each process would read again."""
    archives = ("pyspark.zip", "py4j-", "spark-core_")
    return [one for one in path if not (one.endswith((".zip", ".jar")) and Path(one).name.startswith(archives))]


def imported_before(started: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The modules that a forked process needs: all for tasks, the source for planning."""
    if started[0] != _FORKS:
        return []
    wanted = [one for one in environment.get(IMPORTS, "").split(",") if one]
    return wanted if started[1:] == [_TASKS] else [one for one in wanted if one == SOURCE]
