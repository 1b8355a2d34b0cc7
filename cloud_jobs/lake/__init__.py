"""The lake: tables, schemas, versions, snapshots and coverage."""
