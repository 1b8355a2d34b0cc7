"""Incremental computation of derived tables: applied fence versions, changed keys and the outbox."""
