"""What the centre has, how far its jobs are, and what is wrong: read from logs and small tables, without Spark.

`facts` and `judging` are pure, `lake_facts` and `topic_lag` read, `tables` shows, `cli` is the command.
"""
