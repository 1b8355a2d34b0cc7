"""Many losses of the centre: micro-batch length × snapshot period × moment of the kill, with a failback after each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from deploy.drill.drills import Outcome, run_drill
from deploy.drill.environment import Say, drill_stack, open_environment
from deploy.drill.errors import DrillError
from deploy.drill.report import as_json
from deploy.drill.settings import Drill, DrillSettings, Moment
from deploy.local import LocalStackError, empty
from geo.replication import ReplicationError

TRIGGERS_S = (0.5, 1.0, 3.0)
SNAPSHOTS_S = (0.5, 1.0, 3.0)
MOMENTS = tuple(Moment)


class SweepPoint(NamedTuple):
    """One run of the sweep."""

    snapshot_period_s: float
    trigger_s: float
    moment: Moment


class SweepResult(NamedTuple):
    """What came of a point: the two drills, or why it could not be run."""

    point: SweepPoint
    outcomes: tuple[Outcome, ...]
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was run and every figure holds."""
        return not self.error and all(outcome.found.passed for outcome in self.outcomes)


def points(snapshots_s: Sequence[float], triggers_s: Sequence[float], moments: Sequence[Moment]) -> list[SweepPoint]:
    """Every combination; those of one stack, and of one ingest on it, stand together."""
    return [SweepPoint(*one) for one in product(snapshots_s, triggers_s, moments)]


def sweep(folder: Path, settings: DrillSettings, todo: Sequence[SweepPoint], say: Say) -> Iterator[SweepResult]:
    """Runs the points and gives each result when it is there; all are kept in `runs.jsonl` in the folder.

    A stack starts anew for each snapshot period, an ingest for each micro-batch length; where one of them fails, its
    other points are not run, and say so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # it is about records and the moment of a loss: what a drill takes longer for alerts would be taken 72 times
    settings = settings.model_copy(update={"alerts": False})
    with (folder / "runs.jsonl").open("w", encoding="utf-8") as kept:
        for result in _on_stacks(folder, settings, todo, say):
            kept.write(json.dumps(_line(result)) + "\n")
            # A sweep takes an hour: one that is interrupted leaves the results so far.
            kept.flush()
            yield result


def _on_stacks(folder: Path, settings: DrillSettings, todo: Sequence[SweepPoint], say: Say) -> Iterator[SweepResult]:
    for snapshot_s in dict.fromkeys(point.snapshot_period_s for point in todo):
        mine = [point for point in todo if point.snapshot_period_s == snapshot_s]
        place = folder / f"snapshot-{snapshot_s:g}"
        empty(place, part_of=folder)
        done = 0
        try:
            for result in _on_stack(place, settings, mine, say):
                done += 1
                yield result
        except (DrillError, LocalStackError, ReplicationError) as error:
            say(f"this stack is given up: {error}")
            yield from (SweepResult(point, (), str(error).splitlines()[0]) for point in mine[done:])


def _on_stack(place: Path, settings: DrillSettings, mine: Sequence[SweepPoint], say: Say) -> Iterator[SweepResult]:
    settings = settings.model_copy(update={"snapshot_period_s": mine[0].snapshot_period_s})
    with drill_stack(place, settings, say) as stack:
        for trigger_s in dict.fromkeys(point.trigger_s for point in mine):
            settings = settings.model_copy(update={"trigger_s": trigger_s})
            with open_environment(stack, place / f"ingest-{trigger_s:g}", settings, say) as environment:
                for point in mine:
                    if point.trigger_s == trigger_s:
                        say(
                            f"snapshots every {point.snapshot_period_s:g} s, micro-batches of {trigger_s:g} s, "
                            f"killed when a batch is: {point.moment}"
                        )
                        environment.settings = settings.model_copy(update={"moment": point.moment})
                        yield SweepResult(
                            point, (run_drill(Drill.HQ_LOSS, environment), run_drill(Drill.FAILBACK, environment))
                        )


def sweep_table(results: Sequence[SweepResult]) -> Table:
    """One row a loss of the centre; of the failback after it, only whether it held."""
    table = Table(title="The centre lost, again and again", title_justify="left", caption_justify="left")
    words = (
        "snap",
        "batch",
        "killed when",
        "records",
        "lost",
        "RPO",
        "in table twice",
        "read again",
        "at most",
        "first",
        "last",
        "back",
        "holds",
    )
    for column in words:
        table.add_column(column, justify="left" if column == "killed when" else "right")
    for result in results:
        table.add_row(*_row(result))
    passed = sum(result.passed for result in results)
    table.caption = f"{passed} of {len(results)} hold"
    return table


def _row(result: SweepResult) -> list[str]:
    point = [f"{result.point.snapshot_period_s:g} s", f"{result.point.trigger_s:g} s", result.point.moment.value]
    if result.error:
        return [*point, *[""] * 8, "not run", "NO"]
    loss, back = (outcome.found for outcome in result.outcomes)
    return [
        *point,
        f"{loss.acknowledged:,}",
        f"{loss.lost:,}",
        f"{loss.not_replicated:,}",
        f"{loss.duplicates_in_table:,}",
        f"{loss.duplicates_before:,}",
        f"{loss.duplicates_bound:,}",
        f"{loss.first_through_s:.1f} s",
        f"{loss.last_through_s:.1f} s",
        "holds" if back.passed else "NO",
        "yes" if result.passed else "NO",
    ]


def _line(result: SweepResult) -> dict[str, Any]:
    return {
        **result.point._asdict(),
        "error": result.error,
        "passed": result.passed,
        "drills": [as_json(outcome) for outcome in result.outcomes],
    }
