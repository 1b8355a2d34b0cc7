"""The buffer on the vehicle's disk."""
