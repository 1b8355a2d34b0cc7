"""From Pulsar topics to the records table: each record once, despite duplicates and several regions."""
