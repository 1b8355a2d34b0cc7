"""Container images of the gateway, the centre and the edge agent, from Debian's packages and our wheels."""
