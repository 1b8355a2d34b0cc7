"""Ways out of the vehicle."""
