"""Failover drills: stop a cluster or cut a link under load, and count every record."""
