"""Files of reference data, judged beside what a lake has: one judgement for checking and for publishing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cloud_jobs.alert_rule_checks import check_rules
from cloud_jobs.billing.contracts.check import CheckedContracts, check_contracts
from cloud_jobs.billing.contracts.what_if import Bills
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference_files import PlacedVersion, ReferenceVersion, read_placed


@dataclass(frozen=True, slots=True)
class JudgedReference:
    """The versions of files, what is wrong with them, and what they would change."""

    placed: tuple[PlacedVersion, ...]
    checked: CheckedContracts

    @property
    def versions(self) -> tuple[ReferenceVersion, ...]:
        """The versions, without where they stand."""
        return tuple(one.version for one in self.placed)

    @property
    def counts(self) -> Counter[Any]:
        """How many versions there are of each kind."""
        return Counter(version.kind for version in self.versions)


def judged_reference(
    files: Iterable[Path], lake: Lake | None, moment: datetime, bills: Bills | None = None
) -> JudgedReference:
    """What files say, beside what a lake has; None: by themselves. `bills`: also which of these would change.

    Raises ReferenceFileError where the files alone have a fault; LakeError, StoreUnavailable.
    """
    placed = read_placed(files)
    published = [] if lake is None else lake.rows("reference").to_pylist()
    stated = [
        {"kind": one.version.kind, "id": one.version.id, "body": one.version.body}
        | {"place": one.place, "place_of": one.place_of}
        for one in placed
    ]
    checked = check_contracts(published, stated, moment, bills)
    rules = check_rules(published, stated)
    said = [f"{one.place}: {notice}" for one in placed for notice in one.notices]
    notices = [*said, *checked.notices, *rules.notices]
    checked = checked._replace(lacking=[*checked.lacking, *rules.lacking], notices=notices)
    return JudgedReference(tuple(placed), checked)
