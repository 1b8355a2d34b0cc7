"""Identities: names, authorities, certificates, tokens, operators' keys and the device registry."""
