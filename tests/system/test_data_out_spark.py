"""The queries of `docs/data-out.md` in Spark SQL with Delta for Spark, by the code of the page, on a real lake.

A process has one Spark, and this one has other jars than that of the jobs, so it runs in a process of its own.
"""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.lake.descriptions import column_text
from deploy.local.pulsar import cache_folder
from tests.cloud_jobs.lake.queried import FOUND, PAGE, QUERIES, code_with, json_expression, queried_lake

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]


def test_spark_finds_the_rows(tmp_path: Path) -> None:
    jars = sorted((cache_folder() / "delta-spark").glob("*.jar"))
    assert len(jars) == 4, "run `deploy/bootstrap.sh delta`"
    (of_spark,) = (jar.stem for jar in jars if jar.name.startswith("delta-spark"))
    assert ":".join(of_spark.rsplit("-", 1)) in PAGE, "the page names the tested version"
    queried_lake(tmp_path)
    command = [sys.executable, "-m", "tests.system.test_data_out_spark", str(tmp_path), ",".join(map(str, jars))]
    root = Path(__file__).parents[2]
    environment = os.environ | {"TZ": "UTC", "PYTHONPATH": str(root)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    more = {"driver": [{"driver": "7"}], "comments": [{"tenant": column_text("usage", "tenant")}]}
    assert found == json.loads(json.dumps(FOUND | more, default=_text))


def _text(value: Any) -> str:
    # Spark gives moments without a zone: those of the session, which is UTC
    utc = value.astimezone(UTC) if isinstance(value, datetime) else value
    assert isinstance(utc, date)
    return utc.isoformat()


def _main(folder: Path, jars: str) -> None:
    builder: Any = SparkSession.builder
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = builder.master("local[1]").config(map=settings).getOrCreate()
    exec(code_with("spark.read"), {"spark": spark})  # noqa: S102 - the page of this repository
    found = {}
    for name in FOUND:
        own = QUERIES / f"{name}.spark.sql"
        query = (own if own.exists() else QUERIES / f"{name}.sql").read_text()
        found[name] = [row.asDict() for row in spark.sql(query).collect()]
    driver = spark.table("records").where("kind = 'event'").selectExpr(f"{json_expression('Spark')} AS driver")
    found["driver"] = [row.asDict() for row in driver.collect()]
    (describe,) = re.findall(r"`(DESCRIBE .*?)`", PAGE)
    found["comments"] = [{row["col_name"]: row["comment"]} for row in spark.sql(describe).take(1)]
    sys.stdout.write("\n" + json.dumps(found, default=lambda value: _text(_with_zone(value))) + "\n")
    spark.stop()


def _with_zone(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
