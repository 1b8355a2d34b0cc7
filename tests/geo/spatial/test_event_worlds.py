"""Visits in worlds made to be hard: their definition, and what corrections end with."""

from tests.geo.spatial import event_fuzz


def test_visits_with_hysteresis_are_those_of_their_definition_and_corrections_end_with_what_the_fixes_say() -> None:
    counts, last = event_fuzz.run(seed=1_000_000, pairs=300)
    print(f"seeds 1000000 to {last}: {counts.summary()}")  # noqa: T201  # what was tried is part of the result
    assert counts.faults == []
    assert counts.visits > 200
    assert counts.jitter > 1_000
    assert counts.corrected > 1_000
    assert counts.unsure < counts.pairs // 2
