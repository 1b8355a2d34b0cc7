"""How far what is used in an hour reaches into the past."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

MAX_SEGMENT: Final = timedelta(days=1)
"""A row is of the hour in which its segments end; the fix where one begins is at most this long before the other."""
