"""Status of the centre: tables, delay of jobs and problems, from logs and small tables, without Spark.

`facts` and `judging` are pure, `lake_facts` and `topic_lag` read, `tables` shows, `cli` is the command.
"""
