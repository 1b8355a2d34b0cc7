"""What a job counts of its runs, and what its health says of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.run_metrics import RunMetrics, RunOutcome

MAX_RUN_S = 100.0


class Clocked:
    """A job's metrics by a clock that a test turns."""

    def __init__(self) -> None:
        self.time_s = 1_000.0
        self.metrics = RunMetrics("usage", MAX_RUN_S, clock=lambda: self.time_s, now=lambda: self.time_s)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"command": "usage", **labels})

    def run(self, outcome: RunOutcome, took_s: float = 2.0, **counts: int) -> None:
        try:
            with self.metrics.run() as measured:
                self.time_s += took_s
                if outcome is RunOutcome.FAILED:
                    raise OSError("the disk is full")
                measured.did(counts, work=outcome is RunOutcome.COMPUTED)
        except OSError:
            pass


@given(st.lists(st.sampled_from(RunOutcome), max_size=30))
def test_each_run_is_counted_once_by_how_it_ended(outcomes: list[RunOutcome]) -> None:
    job = Clocked()
    for outcome in outcomes:
        job.run(outcome)
    for outcome in RunOutcome:
        assert job.value("waybill_jobs_runs_total", outcome=outcome) == outcomes.count(outcome)
    assert job.value("waybill_jobs_run_seconds_count") == outcomes.count(RunOutcome.COMPUTED)
    good = [outcome for outcome in outcomes if outcome is not RunOutcome.FAILED]
    assert bool(job.value("waybill_jobs_run_end_timestamp_seconds")) == bool(good)
    trailing = len(outcomes) - max((at + 1 for at, one in enumerate(outcomes) if one in good), default=0)
    assert job.value("waybill_jobs_failed_runs") == trailing
    assert job.metrics.health()["healthy"] == (None if not outcomes else not trailing)


def test_rows_and_what_is_published_add_up_and_what_was_found_is_of_the_last_run() -> None:
    job = Clocked()
    job.run(RunOutcome.COMPUTED, rows=3, published=2, records_behind=10, fences_refused=4)
    job.run(RunOutcome.COMPUTED, revisions=2, records_behind=5)
    assert job.value("waybill_jobs_rows_total") == 5
    assert job.value("waybill_jobs_published_rows_total") == 2
    assert job.value("waybill_jobs_behind_records") == 5
    assert job.value("waybill_jobs_refused_fences") == 4, "the second run did not look"
    assert job.value("waybill_jobs_run_seconds_sum") == 4


def test_the_health_names_the_last_failure_until_a_run_ends_well() -> None:
    job = Clocked()
    job.run(RunOutcome.FAILED)
    health = job.metrics.health()
    assert (health["last_error"], health["last_outcome"], health["failures_in_a_row"]) == (
        "the disk is full",
        "failed",
        1,
    )
    job.run(RunOutcome.IDLE)
    assert (job.metrics.health()["last_error"], job.metrics.health()["last_outcome"]) == ("", "idle")
