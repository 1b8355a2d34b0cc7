"""Connections from the vehicle to a region."""
