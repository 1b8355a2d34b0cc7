"""What the agent does in a second."""
