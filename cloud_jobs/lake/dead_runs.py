"""Runs of the closing that will never be one: said in the log of `closings`, upon which each run commits last.

A run writes its lines and certificates, and then its closings. One that died in between leaves rows that no closing
names. Before they are deleted the run is declared dead, in a commit that is numbered as closings are: so either the run
was faster and is named, or it finds itself dead and closes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from deltalake import DeltaTable

from cloud_jobs.errors import CommitConflict, Fenced
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, newest_number, next_number, stated

_TABLE: Final = "closings"
_DEAD: Final = "dead run "
_TRIES: Final = 20


def is_dead(opened: DeltaTable, run: str) -> bool:
    """Whether a run was declared dead in the version of `closings` that was opened."""
    return stated(opened, f"{_DEAD}{run}") is not None


def runs_without_closing(lake: Lake, opened: DeltaTable, runs: Collection[str]) -> set[str]:
    """Those of some runs that no closing of the version that was opened names. Raises LakeError."""
    with lake.damage_as_error(_TABLE):
        named = lake.dataset(_TABLE, opened).to_table(columns=["run"])["run"].unique().to_pylist()
    return {*runs} - {*named}


def declare_dead(lake: Lake, runs: Collection[str]) -> set[str]:
    """Declares those of some runs dead that no closing names, and returns them: none of them will be a closing.

    Raises CommitConflict, CommitFailed, LakeError.
    """
    for _ in range(_TRIES):
        opened = lake.open(_TABLE)
        # of the version upon which the commit is made: a run that is named meanwhile makes it fail
        dead = runs_without_closing(lake, opened, runs)
        states = {f"{_DEAD}{run}": 1 for run in dead if not is_dead(opened, run)}
        # declared by an earlier run of the maintenance, which ended before it had deleted all
        if not states:
            return dead
        previous = newest_number(opened, _TABLE)
        try:
            commit_files(
                opened, _TABLE, [], writer=_TABLE, previous=previous, number=next_number(previous), states=states
            )
        except Fenced:
            # a closing was committed meanwhile: perhaps that of one of them
            continue
        return dead
    raise CommitConflict(_TABLE)
