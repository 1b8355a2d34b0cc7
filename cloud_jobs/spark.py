"""The Spark session of every job: Delta, UTC, this interpreter for the workers, and no more memory than it is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import Field
from pyspark.sql import SparkSession

from cloud_jobs.errors import SparkNotReady
from settings import Settings

# Spark has these in versions of its own; two versions of one class must not be mixed
_SHIPPED_WITH_SPARK = ("hadoop-", "jackson-", "log4j-", "parquet-", "slf4j-", "snappy-", "zstd-", "commons-", "jsr305-")


def default_jars_folder() -> Path:
    """Where `deploy/bootstrap.sh` puts Delta's jars."""
    cache = os.environ.get("WAYBILL_CACHE")
    if cache:
        return Path(cache) / "jars-delta-4.4.0"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waybill" / "jars-delta-4.4.0"


class SparkSettings(Settings):
    """How Spark runs. `master` is Spark's own URL; memory is the driver's heap, which is all there is with `local`."""

    master: str = "local[2]"
    driver_memory: str = Field(default="1g", pattern=r"^\d+[mg]$")
    shuffle_partitions: int = Field(default=2, ge=1, le=100_000)
    jars_folder: Path = Field(default_factory=default_jars_folder)
    extra: dict[str, str] = Field(default_factory=dict, description="any further Spark settings, by their own names")


def start_spark(name: str, settings: SparkSettings) -> SparkSession:
    """A session with Delta. Raises SparkNotReady."""
    jars = sorted(settings.jars_folder.glob("*.jar"))
    if not jars:
        raise SparkNotReady(f"no jars of Delta in {settings.jars_folder}; `make setup` fetches them")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    needed = [str(jar) for jar in jars if not jar.name.startswith(_SHIPPED_WITH_SPARK)]
    builder = (
        SparkSession.Builder()
        .appName(name)
        .master(settings.master)
        .config("spark.jars", ",".join(needed))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        # Days and hours are cut in SQL, and are those of UTC wherever the job runs.
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(settings.shuffle_partitions))
        # Without it Delta reads each table's log in 50 tasks.
        .config("spark.databricks.delta.snapshotPartitions", str(settings.shuffle_partitions))
        .config("spark.driver.memory", settings.driver_memory)
        # Spark looks through a failed query's message with a recursive expression, which needs a deep stack.
        .config("spark.driver.extraJavaOptions", "-Xss16m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # Without it a stop waits for ever for a query that hangs.
        .config("spark.sql.streaming.stopTimeout", "60s")
    )
    for key, value in settings.extra.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise SparkNotReady(f"Spark does not start with {settings.master}: {error}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session
