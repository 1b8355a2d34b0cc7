"""Which publications of reference data are in force at the centre: the rule of `geo.reference`. Knows no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from cloud_jobs.errors import CloudError
from geo.alerts import AlertError
from geo.reference.in_force import InForce, Usable, versions_in_force
from geo.spatial import FenceError

Made = TypeVar("Made")


def in_force(rows: Iterable[dict[str, Any]], parse: Callable[[str, str], Usable[Made]]) -> InForce[Made]:
    """What rows of the reference table, in any order, amount to.

    `parse` makes something of a kind and a text, or raises CloudError, AlertError or FenceError.
    """
    return versions_in_force(rows, parse, (CloudError, AlertError, FenceError))
