"""Jobs that run at once on the local Spark cluster each get an executor."""
