"""The ways of devices from their anchors on: what is held of them, and what arrived, in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.alerts.slot_rows import Records
from geo.spatial.ragged import Bools, Ints, run_starts


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """Fixes (FIX) by owner and time, the anchor of each owner first. `new`: it arrived just now; `plain`: on the way to it
    from the fix before surely nothing happened.
    """

    owner: Ints
    rows: Records
    new: Bools
    plain: Bools

    def __len__(self) -> int:
        return len(self.owner)

    def of(self, owners: Bools) -> Ways:
        """Those of some owners, which are numbered anew."""
        number = np.cumsum(owners) - 1
        keep = owners[self.owner]
        return Ways(number[self.owner[keep]], self.rows[keep], self.new[keep], self.plain[keep])

    @property
    def first(self) -> Bools:
        """The anchors."""
        return run_starts(self.owner)

    @property
    def last(self) -> Bools:
        """The last fixes."""
        return np.append(self.first[1:], True)[: len(self)]


def joined(parts: list[tuple[Ints, Records]]) -> tuple[Ints, Records, Bools, int]:
    """Rows of anchors, of what is held, and of what arrived, as one: owner, row, whether it arrived; each time once.

    And how many were left out, as there was another of their time.
    """
    owner = np.concatenate([part[0] for part in parts])
    rows = np.concatenate([part[1] for part in parts])
    new = np.zeros(len(owner), dtype=np.bool_)
    new[len(owner) - len(parts[-1][0]) :] = True
    order = np.argsort(owner, kind="stable")
    in_order = owner[order][1:] > owner[order][:-1]
    in_order |= np.diff(rows["t_ms"][order]) > 0
    if not in_order.all():
        order = np.lexsort((rows["seq"], rows["epoch"], rows["t_ms"], owner))
    owner, rows, new = owner[order], rows[order], new[order]
    once = run_starts(owner, rows["t_ms"])
    return owner[once], rows[once], new[once], len(once) - int(np.count_nonzero(once))
