"""The ingest: from Pulsar topics to the records table, each record once."""
