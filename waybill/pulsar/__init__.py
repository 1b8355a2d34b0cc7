"""Pulsar: the client, addresses, positions, and topics that are compacted."""
