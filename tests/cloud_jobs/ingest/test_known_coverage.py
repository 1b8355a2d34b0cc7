"""What the ingest keeps in memory is what the rows of the coverage say, however it is kept."""

from __future__ import annotations

from hypothesis import given

from cloud_jobs.ingest.micro_batch import KnownCoverage
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_rows import to_rows
from tests.cloud_jobs.lake.test_coverage_rows import known


@given(known)
def test_rows_are_known_as_what_they_say(made: dict[DeviceStream, Coverage]) -> None:
    kept = KnownCoverage(to_rows(made))
    assert len(kept) == len(made)
    assert {stream: kept.get(stream) for stream in made} == made
    assert kept.get(DeviceStream("acme", "nobody", 7)) is None


@given(known, known)
def test_new_states_take_the_place_of_old_ones(
    made: dict[DeviceStream, Coverage], later: dict[DeviceStream, Coverage]
) -> None:
    kept = KnownCoverage(to_rows(made))
    kept.update(later)
    assert {stream: kept.get(stream) for stream in made | later} == made | later
