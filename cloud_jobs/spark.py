"""Spark for the jobs: the session, the check of its executors, and tables as frames."""

from __future__ import annotations

import os
import pickle
import platform
import re
import socket
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import pyarrow as pa
import structlog
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from cloud_jobs.errors import CloudError, ExecutorsNotReady
from cloud_jobs.job_settings import SPARK_NAMES, SparkSettings, is_local, standalone_addresses
from cloud_jobs.lake.data_files import DataFile, Range, StoredFiles, stored_rows, write_data_files
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.spark_python import IMPORTS, interpreter

# Lake tables as data frames.

Transform = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function of a partition's rows, as `mapInArrow` takes it."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_FILES = pa.schema([pa.field("file", pa.binary(), nullable=False)])
_ROWS_AT_ONCE = 65_536
_ROWS_IN_FILE = 1_000_000
_TASKS_PER_CORE = 4


def read_files(
    spark: SparkSession, lake: Lake, stored: StoredFiles, columns: Sequence[str], ranges: Mapping[str, Range]
) -> DataFrame:
    """Columns of the rows within `ranges`; executors read the files."""
    files, table, paths = lake.files(stored.table), stored.table, stored.paths
    schema = pa.schema([TABLES[table].schema.field(name) for name in columns])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                for rows in stored_rows(files, table, path, columns, ranges):
                    yield from rows.to_batches(max_chunksize=_ROWS_AT_ONCE)

    tasks = max(min(len(paths), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE), 1)
    listed = spark.sparkContext.parallelize([(path,) for path in paths], tasks)
    return spark.createDataFrame(listed, "path string").mapInArrow(read, from_arrow_schema(schema))


def write_files(rows: DataFrame, lake: Lake, table: str, now: datetime) -> list[DataFile]:
    """Writes rows into uncommitted files of a table."""
    files, layout = lake.files(table), TABLES[table]

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.Table] = []
        written: list[DataFile] = []
        for batch in batches:
            held.append(pa.Table.from_batches([batch]).cast(layout.schema))
            if sum(part.num_rows for part in held) >= _ROWS_IN_FILE:
                written += write_data_files(files, pa.concat_tables(held), now, table=table)
                held = []
        if held:
            written += write_data_files(files, pa.concat_tables(held), now, table=table)
        # what executors of this job write is read by its driver alone
        yield pa.RecordBatch.from_pylist([{"file": pickle.dumps(one)} for one in written], schema=_FILES)

    # a run writes little and often: few files for each commit keep the cost of reading them low
    found = rows.coalesce(1).mapInArrow(write, from_arrow_schema(_FILES)).toArrow()
    return [pickle.loads(one) for one in found["file"].to_pylist()]  # noqa: S301 - written above


def run_on_executors(spark: SparkSession, work: Callable[[_Item], _Made], items: Sequence[_Item]) -> Sequence[_Made]:
    """Runs a function over items, each in a task of its own."""
    made: list[_Made] = spark.sparkContext.parallelize(items, len(items) or 1).map(work).collect()
    return made


def run_as_made(spark: SparkSession, work: Callable[[_Item], _Made], items: Iterable[_Item]) -> Sequence[_Made]:
    """`run_on_executors` for items that this process makes meanwhile: a task begins when its item is made."""
    context, pool = spark.sparkContext, ThreadPoolExecutor(2 * spark.sparkContext.defaultParallelism)

    def run(item: _Item) -> _Made:
        made: _Made = context.parallelize([item], 1).map(work).collect()[0]
        return made

    try:
        return [*pool.map(run, items)]
    finally:
        # after an error the session is stopped
        pool.shutdown(wait=False, cancel_futures=True)


def cast_to(schema: pa.Schema, frame: DataFrame) -> DataFrame:
    """The columns of a schema; missing ones are null."""
    types = {field.name: field.dataType for field in from_arrow_schema(schema)}
    return frame.select(
        *(
            f.col(name).cast(kind) if name in frame.columns else f.lit(None).cast(kind).alias(name)
            for name, kind in types.items()
        )
    )


def map_sorted(frame: DataFrame, key: str, transform: Transform, schema: pa.Schema, *order: str) -> DataFrame:
    """Applies a function to rows sorted by `key` and `order`; all rows of a key are in one partition.

    It returns rows of `schema`.
    """
    in_order = frame.repartition(key).sortWithinPartitions(key, *order)
    return in_order.mapInArrow(transform, from_arrow_schema(schema))


def persist_until(held: ExitStack, frame: DataFrame) -> DataFrame:
    """Keeps a computed frame until `held` is closed."""
    # counting, joining and writing would each compute it anew
    held.callback(frame.persist().unpersist)
    return frame


# Checks of the executors: Python, our code and shared folders.

_CHECKS_PER_CORE = 2
_REASON_CHARACTERS = 300
_EXECUTOR_TIMEOUT_S = 300.0
"""How long a job waits for its first executors to answer."""


class ExecutorReport(NamedTuple):
    """An executor's host, the path of its project, and the marks that it does not see."""

    host: str
    project: str
    unseen: tuple[str, ...]


def inspect_executor(marks: Sequence[str]) -> ExecutorReport:
    """Runs on an executor."""
    unseen = tuple(mark for mark in marks if not Path(mark).exists())
    return ExecutorReport(platform.node(), __file__, unseen)


def check_executors(context: Any, *, archive: str, folders: Sequence[Path], timeout_s: float) -> list[ExecutorReport]:
    """Checks all available executors. Raises ExecutorsNotReady with all faults, or if none answers in time."""
    slots = _CHECKS_PER_CORE * int(context.defaultParallelism)
    with _marks_in(folders) as marks:
        wanted = tuple(map(str, marks))
        # In the first round of tasks each free core gets one, so each executor that is there is asked.
        tasks = context.parallelize(range(slots), slots).map(lambda _: inspect_executor(wanted))
        reports = sorted(set(_collect(context, tasks.collect, timeout_s)))
    faults = [
        f"{one.host}: runs the project of {Path(one.project).parents[1]}, not what the driver sent"
        for one in reports
        if archive and archive not in Path(one.project).parts
    ]
    # a file in an unshared folder would be committed and never read
    faults += [
        f"{one.host}: does not see the driver's folder {Path(mark).parent}: share it, or use S3"
        for one in reports
        for mark in one.unseen
    ]
    if faults:
        raise ExecutorsNotReady(faults)
    return reports


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
        found = _CAUSE.search(str(error))
        cause = found[0] if found else " ".join(str(error).split())[:_REASON_CHARACTERS]
        raise ExecutorsNotReady([f"a first task failed: {cause}; see the requirements in docs/centre.md"]) from error
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)


@contextmanager
def _marks_in(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """A temporary file in each folder, by which executors prove that they share it."""
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


_CAUSE = re.compile(r"(?:Python in worker has different version|Cannot run program|ModuleNotFoundError:)[^\n]*")
_CONNECT_S = 5.0
_LOOPBACK = "127.0.0.1"

_CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

_log = structlog.get_logger("spark")
# Executors that are started later fetch the project then: it is there as long as this process.
_sent: list[TemporaryDirectory[str]] = []


def spark_properties(settings: SparkSettings) -> dict[str, str]:
    properties = {
        # Days and hours are cut in SQL, and are those of UTC wherever the job runs.
        "spark.sql.session.timeZone": "UTC",
        # Spark looks through a failed query's message with a recursive expression, which needs a deep stack.
        "spark.driver.extraJavaOptions": "-Xss16m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The default one starts a process for each file of a checkpoint where Hadoop's native library is missing.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        # Without it a stop waits for ever for a query that hangs.
        "spark.sql.streaming.stopTimeout": "60s",
        # On a busy machine a process of Python is not there within the 15 seconds that are usual, and the query fails.
        "spark.python.authenticate.socketTimeout": "60s",
    }
    if is_local(settings.master):
        properties |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    else:
        # A job begins when its cores are there, so that the check of the executors asks all of them.
        properties["spark.scheduler.minRegisteredResourcesRatio"] = "1.0"
    given = {name: getattr(settings, field) for field, name in SPARK_NAMES.items()}
    if settings.secret_file is not None:
        properties |= {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    return properties | {name: str(value) for name, value in given.items() if value is not None} | settings.extra


def start_spark(
    name: str,
    settings: SparkSettings,
    lake: Location | None = None,
    *,
    task_imports: Sequence[str] = ("cloud_jobs.spark",),
    log: Path | None = None,
) -> SparkSession:
    """Starts a session; the executors of a cluster get the driver's code, and are checked to see the lake's folder.

    `task_imports`: modules that are imported before the first task begins, on one machine. `log`: where Spark's own
    process writes instead of standard error; replaced at each start.
    Raises CloudError, ExecutorsNotReady.
    """
    properties = spark_properties(settings)
    masters = standalone_addresses(settings.master)
    if masters and not any(map(_answers, masters)):
        raise CloudError(f"no answer from {settings.master}")
    local = is_local(settings.master)
    os.environ["PYSPARK_PYTHON"] = settings.python or (interpreter() if local else sys.executable)
    os.environ[IMPORTS] = ",".join(task_imports)
    builder = SparkSession.Builder().appName(name)
    for key, value in properties.items():
        builder = builder.config(key, value)
    try:
        with nullcontext() if log is None else standard_error_to(log):
            if (secret := settings.secret()) is not None:
                # The command line of the driver's JVM has all that is set before it starts, and everybody can read it.
                before = SparkConf(loadDefaults=False).setAll([*properties.items()])
                SparkContext._ensure_initialized(conf=before)  # noqa: SLF001 - the only way to start the JVM alone
                builder = builder.config("spark.authenticate.secret", secret)
            session = builder.appName(name).getOrCreate()
    except Exception as error:
        where = "" if log is None else f"; Spark's own log is {log}"
        raise CloudError(f"Spark does not start with {settings.master}: {error}{where}") from error
    session.sparkContext.setLogLevel("ERROR")
    try:
        if not local:
            folders = [lake.folder] if lake is not None and lake.folder is not None else []
            _prepare_executors(session, folders)
    except BaseException:
        session.stop()
        raise
    return session


def terminal_log(folder: Path, job: str) -> Path | None:
    """The file for Spark's own log if a person watches this command, else None: a service's journal has all of it."""
    return folder / f"spark-{job}.log" if sys.stderr.isatty() else None


@contextmanager
def standard_error_to(file: Path) -> Iterator[None]:
    """Leads standard error to a file; a process that the block starts keeps that for its life."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"Spark starts; its own log is {file}\n")
    sys.stderr.flush()
    kept, opened = os.dup(2), os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.dup2(opened, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(opened)


def _answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _prepare_executors(session: SparkSession, folders: Sequence[Path]) -> None:
    context = session.sparkContext
    archive = _send_project(context)
    # Spark gives what was sent to its executors, but not to the process at the driver in which a stream plans.
    context.environment["PYTHONPATH"] = str(archive)
    found = check_executors(context, archive=archive.name, folders=folders, timeout_s=_EXECUTOR_TIMEOUT_S)
    _log.info("executors ready", hosts=sorted({one.host for one in found}))


PROJECT_PACKAGES: Final = ("cloud_jobs", "geo", "waybill")
"""What the jobs import of the project, on the driver and on executors."""


def write_project_archive(folder: Path) -> Path:
    """Writes the project's packages into a zip file, from which executors import them."""
    path = folder / "waybill-project.zip"
    # a file may be older than a zip file can say
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for package in PROJECT_PACKAGES:
            place = Path(str(import_module(package).__file__)).parent
            for file in sorted(place.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, f"{package}/{file.relative_to(place).as_posix()}")
    return path


def _send_project(context: Any) -> Path:
    """Gives the executors our code; returns the archive."""
    folder = TemporaryDirectory(prefix="waybill-project-")
    _sent.append(folder)
    path = write_project_archive(Path(folder.name))
    context.addPyFile(str(path))
    # The driver goes on with the files that it began with: Spark deletes this copy when it stops.
    with suppress(ValueError):
        sys.path.remove(os.path.join(SparkFiles.getRootDirectory(), path.name))  # noqa: PTH118 - the very text
    return path
