"""The version of the engine, for whoever keeps what it computed."""

from __future__ import annotations

from typing import Final

ENGINE_VERSION: Final = 2
"""Counted up by each change after which the same fixes and fences give other numbers; all that is kept is computed
again then."""
