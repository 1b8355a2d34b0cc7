"""Live alerts of fences and gates in a region, before the centre's verdict."""
