"""What is derived from records in increments: the versions of fences applied, changed keys, and the outbox."""
