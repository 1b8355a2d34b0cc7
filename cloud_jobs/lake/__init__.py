"""The lake: tables, schemas, versions, snapshots and coverage.

`schemas`, `seq_ranges` and `coverage` are pure, `tables` reads and writes without Spark, and only `frames` needs it.
Nothing is imported here: the executors take `schemas` alone, and the bill everything but `frames`.
"""
