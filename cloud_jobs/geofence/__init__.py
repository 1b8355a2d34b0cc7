"""Events at fences and gates: published once, and corrected after late fixes."""
