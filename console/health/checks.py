"""Checks and their outcomes, the state of bills that they refer to, and the steps of the runbooks.

Each check has one of three outcomes. What could not be found out is unknown, never fine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.contracts import is_canary
from cloud_jobs.billing.register.closing import ClosingState
from console.health.bounded import Answer
from console.lake import OpenLake
from waybill.settings import one_line


class Outcome(StrEnum):
    FINE = "fine"
    WRONG = "wrong"
    UNKNOWN = "unknown"


_ASK_AGAIN: Final = "Check that it runs and can be reached, then reload. If it stays unknown, see the runbook."


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its outcome. `since`: when it began, None: unknown. `affects`: None: unknown.

    `runbook`: file and section, as `centre.md#WaybillLinkDown`. `command`: what shows more.
    """

    id: str
    title: str
    outcome: Outcome
    found: str
    since: datetime | None = None
    affects: str | None = None
    runbook: str = ""
    command: str = ""

    @property
    def runbook_text(self) -> str:
        """Where the step is: file and section; "none" if nothing is to do."""
        file, _, section = self.runbook.partition("#")
        return f"docs/runbooks/{file}{f', {section}' if section else ''}" if file else "none"

    @property
    def step(self) -> str | None:
        """What to do: of what is wrong, by the runbook. None: the runbooks are not installed."""
        if self.outcome is Outcome.UNKNOWN:
            return _ASK_AGAIN
        return runbook_step(self.runbook) if self.runbook else None


@dataclass(frozen=True, slots=True)
class LinkLag:
    """Replication from one cluster to another in all namespaces; None: unknown."""

    source: str
    target: str
    connected: bool | None
    backlog: int | None
    delay_s: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """All checks. `not_checked`: what was left out, with the reason."""

    now: datetime
    checks: tuple[Check, ...]
    links: tuple[LinkLag, ...] = ()
    not_checked: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Fine only if nothing is wrong and nothing is unknown."""
        outcomes = {one.outcome for one in self.checks}
        if Outcome.WRONG in outcomes:
            return Outcome.WRONG
        return Outcome.UNKNOWN if Outcome.UNKNOWN in outcomes or not self.checks else Outcome.FINE

    @property
    def headline(self) -> str:
        wrong, unknown = (sum(one.outcome is kind for one in self.checks) for kind in (Outcome.WRONG, Outcome.UNKNOWN))
        if self.outcome is Outcome.FINE:
            return f"all {len(self.checks)} checks are fine"
        parts = [f"{count} {word}" for count, word in ((wrong, "wrong"), (unknown, "unknown")) if count]
        return f"{' and '.join(parts)} of {len(self.checks)} checks"


# The step that a runbook names.

_PACKAGE: Final = Path(__file__).parents[1]
_FOLDERS: Final = (_PACKAGE / "runbooks", _PACKAGE.parent / "docs" / "runbooks")
"""In an installed package, and in a source tree."""
_DO: Final = re.compile(r"^\*\*Do\.\*\*\s*(.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@lru_cache(maxsize=256)
def runbook_step(runbook: str) -> str | None:
    """The text after *Do.* of a section, as `centre.md#WaybillLinkDown`; None if it is not there."""
    name, _, section = runbook.partition("#")
    for folder in _FOLDERS:
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except OSError:
            continue
        if not section:
            return None
        part = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        if found := _DO.search(part):
            return _LINK.sub(r"\1", found[1]).replace("`", "").replace("*", "").strip()
    return None


# Bills: what they say of a fault, and those that wait.


@dataclass(frozen=True, slots=True)
class BillStates:
    """The newest closing of each payer and period. `final`: periods of which every closing is final, newest first.

    `waiting`: closings of past periods that are not final: period, payer, reasons, end of the period.
    """

    final: tuple[str, ...] = ()
    waiting: tuple[tuple[str, str, str, datetime], ...] = ()
    count: int = 0

    @property
    def kept(self) -> str:
        """What a late record or a late job cannot change."""
        if not self.final:
            return "no bill is final yet"
        more = f" and {len(self.final) - 3} more periods" if len(self.final) > 3 else ""
        return f"the final bills of {', '.join(self.final[:3])}{more} are not affected"


def bills_kept(answer: Answer[BillStates]) -> str:
    return "which bills are final is unknown" if answer.error else answer.get().kept


def bill_states(closings: pa.Table, now: datetime) -> BillStates:
    """From rows of `closings` (BILL_COLUMNS). Canaries get no bill. Pure."""
    newest: dict[tuple[str, Any, Any], dict[str, Any]] = {}
    keys = ["legal_entity", "payer", "first_day", "last_day"]
    latest = closings.group_by(keys).aggregate([("number", "max")]).rename_columns([*keys, "number"])
    for row in closings.join(latest, [*keys, "number"], join_type="inner").to_pylist():
        if not is_canary(row["payer"]):
            newest[row["payer"], row["first_day"], row["last_day"]] = row
    by_period: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for (_, first, last), row in newest.items():
        by_period.setdefault((first, last), []).append(row)
    final = [
        days_text(*period)
        for period, rows in sorted(by_period.items(), reverse=True)
        if all(row["outcome"] == ClosingState.FINAL for row in rows)
    ]
    waiting = sorted(
        (days_text(first, last), payer, "; ".join(json.loads(row["reasons"])), row["period_end"])
        for (payer, first, last), row in newest.items()
        if row["outcome"] != ClosingState.FINAL and row["period_end"] <= now
    )
    return BillStates(tuple(final), tuple(waiting), len(newest))


BILL_COLUMNS: Final = (
    *("legal_entity", "payer", "first_day", "last_day", "number", "outcome", "reasons", "period_end"),
)
_BILLS_DAYS: Final = 400


def read_bills(lake: OpenLake, now: datetime) -> BillStates:
    since = (now - timedelta(days=_BILLS_DAYS)).date()
    return bill_states(lake.rows("closings", BILL_COLUMNS, where=[("first_day", ">=", since)]), now)


def check_bills(answer: Answer[BillStates]) -> Check:
    title = "Bills"
    if answer.error:
        return Check("bills", title, Outcome.UNKNOWN, answer.error, runbook="billing.md")
    bills = answer.get()
    if not bills.waiting:
        found = f"{bills.count:,} closings of {_BILLS_DAYS} days; none of a past period is provisional"
        return Check("bills", title, Outcome.FINE, found)
    period, payer, reasons, _ = bills.waiting[0]
    payers = {one[1] for one in bills.waiting}
    return Check(
        "bills",
        title,
        Outcome.WRONG,
        one_line(f"{len(bills.waiting):,} closings of past periods are not final: {period} of {payer}: {reasons}"),
        min(one[3] for one in bills.waiting),
        f"invoices of {len(payers):,} payers cannot be issued as final; {bills.kept}",
        "billing.md",
        "waybill bill show",
    )
