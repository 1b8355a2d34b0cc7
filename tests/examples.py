"""How many examples a law is tried with: all on a developer's machine, a quarter in continuous integration.

The whole of `make test` has to end within 40 minutes of two cores there, also when these are slow.
"""

from __future__ import annotations

import os

SHARE = 4 if os.environ.get("CI") else 1


def examples(number: int) -> int:
    """So many, or a quarter of them."""
    return max(1, number // SHARE)
