"""What happened at fences and gates: published once, and corrected when late fixes say otherwise."""
