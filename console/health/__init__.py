"""What is wrong now: checks with three outcomes, the canaries, and reads that are bounded in time."""
