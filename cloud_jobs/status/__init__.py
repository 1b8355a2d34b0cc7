"""Status of the centre: tables, delays and problems, from logs and small tables, without Spark."""
