"""Jobs that run at once on the local Spark cluster each get an executor."""

from __future__ import annotations
