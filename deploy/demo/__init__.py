"""The demo: vehicles, faults, and a bill that is held against an independent truth, on real servers."""
