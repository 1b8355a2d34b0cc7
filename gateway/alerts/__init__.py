"""The alert process of a region: what happens at fences and gates, said at once and before the centre says it."""
