"""What a transaction did to the totals, applied once it is known to be stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Changes:
    """Rows are (id, last). `gone`: records and bytes that left each class; negative when something came."""

    acknowledged: int = 0
    hollow: list[tuple[int, int]] = field(default_factory=list)
    outlived: list[tuple[int, int]] = field(default_factory=list)
    gone: dict[int, tuple[int, int]] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)

    def add(self, class_index: int, records: int, size: int) -> None:
        """Records and bytes of a class went."""
        before = self.gone.get(class_index, (0, 0))
        self.gone[class_index] = (before[0] + records, before[1] + size)
