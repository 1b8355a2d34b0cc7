"""What became of the alerts of a drill: each id that a region announced has exactly one verdict. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from geo.alerts import AlertVerdict, VerdictKind
from geo.spatial.event_ids import Revision, in_force


class VerdictRow(NamedTuple):
    """A row of the table `verdicts`."""

    id: str
    revision: int
    verdict: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertAudit:
    """The figures. `unknown`: why they say nothing of all alerts; "": they do.

    `announced`: ids on the topics of alerts. `in_force`: verdicts in force by kind, those of events that no region
    announced among them. `reasons`: of what is withdrawn. `without`: announced ids with no verdict, or with one as if
    nothing had been announced. `twice`: revisions of an id that are in the table more than once. `revised`: ids whose
    verdict was changed. `unpublished`: revisions of the table that are not in the topic of verdicts, or are others
    there. `is_whole`: the verdicts are of the events in force and of what is withdrawn, which have no id in common.
    """

    announced: int = 0
    in_force: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    without: int = 0
    twice: int = 0
    revised: int = 0
    unpublished: int = 0
    is_whole: bool = False
    unknown: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether each announced id has exactly one verdict, which is published; None: it is not known."""
        if self.unknown:
            return None
        return bool(self.announced) and self.is_whole and not (self.without or self.twice or self.unpublished)


def audit_alerts(
    announced: Collection[str],
    events: Iterable[Revision[str]],
    verdicts: Collection[VerdictRow],
    published: Iterable[AlertVerdict],
) -> AlertAudit:
    """Holds ids from the topics against events, verdicts and their topic."""
    held = in_force(Revision(row.id, row.revision, row) for row in verdicts)
    happened = in_force(events).keys()
    kinds = Counter(row.verdict for row in held.values())
    withdrawn = {name for name, row in held.items() if row.verdict == VerdictKind.WITHDRAWN}
    rows = {(row.id, row.revision): row.verdict for row in verdicts}
    said = {(one.id, one.revision): str(one.verdict) for one in published}
    return AlertAudit(
        announced=len({*announced}),
        in_force={kind.value: kinds[kind] for kind in VerdictKind},
        reasons=dict(Counter(str(held[name].reason) for name in withdrawn)),
        # late is said of what no region said
        without=sum(name not in held or held[name].verdict == VerdictKind.LATE for name in {*announced}),
        twice=len(verdicts) - len(rows),
        revised=len({name for name, revision in rows if revision}),
        unpublished=len({*rows.items()} ^ {*said.items()}),
        is_whole=held.keys() == happened | withdrawn and not happened & withdrawn,
    )
