"""Alerts of a region: what happens at fences and gates, said before the centre says it for good."""
