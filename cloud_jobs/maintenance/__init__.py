"""Maintenance of the lake during operation: compaction, cleanup and erasure."""
