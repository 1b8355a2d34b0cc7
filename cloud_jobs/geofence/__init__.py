"""What happened at fences and gates: told once, and corrected when late fixes say otherwise."""
