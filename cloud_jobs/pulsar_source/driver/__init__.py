"""In Spark's driver: which cluster is read, what a batch takes, what is acknowledged."""
