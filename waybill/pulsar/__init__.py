"""Pulsar: the client, addresses, positions and compacted topics."""
