"""Reference data in files, topics and the lake: versioned fences, tariffs, accounts and alert rules."""
