"""The spatial engine (`spatial`) and geo-replication (`replication`)."""
