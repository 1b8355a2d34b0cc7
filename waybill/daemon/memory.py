"""How much memory this process holds."""

from __future__ import annotations

import resource
from pathlib import Path

__all__ = ["resident_bytes"]


def resident_bytes() -> int:
    """Resident memory; 0 where the machine does not say so."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0
