"""What the gateway holds and does for a large fleet."""
