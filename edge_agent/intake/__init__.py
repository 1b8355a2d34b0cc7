"""From the vehicle's broker to the buffer."""
