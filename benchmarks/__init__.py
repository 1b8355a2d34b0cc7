"""What the parts do in a second."""
