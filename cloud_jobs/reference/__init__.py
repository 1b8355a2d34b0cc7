"""Reference data in files, topics and the lake: fences, tariffs, accounts and alert rules with versions."""
