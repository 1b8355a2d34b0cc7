"""Newest closings that say nothing for certain: they could not be posted, or a new one would not be final."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Final

from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.closing_fences import closing_fences
from cloud_jobs.billing.register.newer_contracts import NewerContracts
from cloud_jobs.billing.register.outdated import outdated_closings
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.snapshots import Snapshot
from cloud_jobs.reconcile.comparison import Comparison, Station

MAX_REASONS: Final = 3
"""So many reasons of a closing are named."""


class UnsettledClosings:
    """What a snapshot says of the newest closings of some days. Each question raises LakeError, StoreUnavailable."""

    def __init__(self, register: Register, snapshot: Snapshot, days: Days, payers: Collection[str]) -> None:
        self._lake = register.lake
        self._snapshot = snapshot
        self._newer = NewerContracts(self._lake, days[1], snapshot)
        self._outdated = outdated_closings(register, days, self._newer, payers)
        self._has_same_fences: dict[int, bool] = {}

    def compared(self, closing: Closing) -> Iterator[Comparison]:
        """Unknown, and why; nothing of a closing that stands."""
        reasons, payer = [], closing.key.payer
        if payer in self._outdated:
            reasons.append(self._outdated[payer])
        if closing.outcome is not ClosingState.FINAL:
            reasons.append(f"{closing.outcome.value}: {'; '.join(closing.reasons[:MAX_REASONS])}")
        elif not self._is_metered_alike(closing.snapshot) and self._other_fences is not None:
            reasons.append(f"{self._other_fences}, run `cloud-jobs usage`")
        if reasons:
            decide = "" if closing.outcome is ClosingState.FINAL else "`waybill decisions close-device`, then "
            note = f"{'; '.join(reasons)}; {decide}`waybill bill close` it again"
            yield Comparison(Station.RATED, "closing", payer, None, None, note)

    def _is_metered_alike(self, number: int) -> bool:
        """Whether there are the same fences as at the snapshot of a final closing, by which usage was computed."""
        if number not in self._has_same_fences:
            then = self._newer.snapshot(number)
            self._has_same_fences[number] = (
                then is not None
                and then.usage_fences == self._snapshot.usage_fences
                and not self._published_since(then)
            )
        return self._has_same_fences[number]

    def _published_since(self, then: Snapshot) -> bool:
        commits = [
            ("commit_number", ">", then.reference_commit),
            ("commit_number", "<=", self._snapshot.reference_commit),
        ]
        rows = self._lake.rows("reference", ["commit_number"], where=[("kind", "=", "fence"), *commits])
        return bool(rows.num_rows)

    @cached_property
    def _other_fences(self) -> str | None:
        # reads each fence there is, so it is asked for only where one is new
        return closing_fences(self._lake, self._snapshot).open_end
