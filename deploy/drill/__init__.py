"""Failover drills: a cluster or a link is lost on purpose, under load, and every record is counted."""
