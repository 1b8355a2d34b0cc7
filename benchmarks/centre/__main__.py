"""`make bench-centre`: the centre's figures beside what is asked. `python -m benchmarks.centre PART...`: parts of it.

`pulsar`: from Pulsar into the table; `light`: few messages a second; `usage`: usage of many fixes and of one late fix;
`age`: a micro-batch after many commits, buffers and records.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.centre import age, usage
from benchmarks.centre.from_pulsar import full, light
from benchmarks.harness import print_figures, quiet
from benchmarks.source import loaded_cluster
from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.spark import start_spark

PARTS = ("pulsar", "light", "usage", "age")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.centre", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, if none is named")
    parser.add_argument("--commits", type=int, default=100_000, help="earlier commits of `age`")
    parser.add_argument("--buffers", type=int, default=1_000_000, help="device streams of `age`")
    parser.add_argument("--records", type=int, default=500_000_000, help="earlier records of `age`")
    parser.add_argument("--keep", type=Path, help="a folder in which the lakes of `age` are kept for the next run")
    options = parser.parse_args()
    quiet()
    parts = options.parts or PARTS
    with tempfile.TemporaryDirectory(prefix="bench-centre-") as name:
        folder = Path(name)
        # first, and before Spark: the memory of the driver is that of this process
        if "age" in parts:
            print_figures("The same micro-batch after", age.rows(folder / "age", options))
        if "usage" in parts:
            print_figures("Usage", usage.rows(folder / "usage"))
        if {"pulsar", "light"} & {*parts}:
            _with_spark(folder, parts)


def _with_spark(folder: Path, parts: tuple[str, ...]) -> None:
    spark = start_spark("bench-centre", SparkSettings(master="local[2]"))
    try:
        with loaded_cluster(folder) as place:
            if "pulsar" in parts:
                title = "From Pulsar into the records table, two cores shared with Pulsar"
                print_figures(title, full(spark, place, folder))
            if "light" in parts:
                print_figures("Few messages a second", light(spark, place, folder / "light"))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
