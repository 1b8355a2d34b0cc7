"""From the buffer to the region."""
