"""Upkeep of the lake beside everything else that runs: files are merged and sorted, swept up, positions erased."""
