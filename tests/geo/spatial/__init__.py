"""Proofs of the spatial engine."""
