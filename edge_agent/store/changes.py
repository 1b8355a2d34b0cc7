"""What a transaction did to the totals, applied once it is known to be stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Changes:
    """Rows are (id, last). `removed`: records and bytes that left each class; negative when something came."""

    acknowledged: int = 0
    acked_rows: list[tuple[int, int]] = field(default_factory=list)
    expired: list[tuple[int, int]] = field(default_factory=list)
    removed: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def count_removed(self, class_index: int, records: int, size: int) -> None:
        """Records and bytes of a class went."""
        before = self.removed.get(class_index, (0, 0))
        self.removed[class_index] = (before[0] + records, before[1] + size)
