"""The demo on real servers: vehicles, faults, and a bill that is compared with an independent truth."""
