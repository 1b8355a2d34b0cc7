"""What the spatial engine does in a second of one core."""
