"""Benchmarks of alerts."""
