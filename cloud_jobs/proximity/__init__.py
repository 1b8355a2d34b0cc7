"""Encounters: pairs of devices within a distance, each pair and time once."""
