"""`make bench-centre`: the centre's figures beside what is asked. Parts:

`pulsar`: from Pulsar into the table; `light`: few messages a second; `usage`: usage of many fixes and of one late fix;
`age`: a micro-batch after many commits, buffers and records.
"""

from pathlib import Path

from benchmarks.centre import age, usage
from benchmarks.centre.from_pulsar import full, light
from benchmarks.harness import benchmark_folder, parser_of, print_figures, quiet
from benchmarks.source import loaded_cluster
from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.spark import start_spark

PARTS = ("pulsar", "light", "usage", "age")


def main() -> None:
    parser = parser_of(__doc__, PARTS)
    parser.add_argument("--commits", type=int, default=100_000, help="earlier commits of `age`")
    parser.add_argument("--buffers", type=int, default=1_000_000, help="device streams of `age`")
    parser.add_argument("--records", type=int, default=500_000_000, help="earlier records of `age`")
    parser.add_argument("--keep", type=Path, help="a folder in which the lakes of `age` are kept for the next run")
    options = parser.parse_args()
    quiet()
    with benchmark_folder("centre") as folder:
        # first, and before Spark: the memory of the driver is that of this process
        if "age" in options.parts:
            print_figures("The same micro-batch after", age.rows(folder / "age", options))
        if "usage" in options.parts:
            print_figures("Usage", usage.rows(folder / "usage"))
        if {"pulsar", "light"} & {*options.parts}:
            _with_spark(folder, options.parts)


def _with_spark(folder: Path, parts: list[str]) -> None:
    spark_settings = SparkSettings(master="local[2]")
    with start_spark("bench-centre", spark_settings) as spark, loaded_cluster(folder) as place:
        if "pulsar" in parts:
            title = "From Pulsar into the records table, two cores shared with Pulsar"
            print_figures(title, full(spark, place, folder))
        if "light" in parts:
            print_figures("Few messages a second", light(spark, place, folder / "light"))


if __name__ == "__main__":
    main()
