"""What time it is, and what time it was."""
