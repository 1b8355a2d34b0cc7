"""Settings of the jobs that contradict each other are refused by name."""

import pytest
from pydantic import ValidationError

from cloud_jobs.config import MAX_GAP_S, CloudSettings

CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}


@pytest.mark.parametrize("gap_s", [MAX_GAP_S + 1, float("inf")])
def test_a_gap_of_more_than_a_day_is_refused(gap_s: float) -> None:
    settings = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]}
    assert CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": MAX_GAP_S}}).tracks.max_gap_s == MAX_GAP_S
    with pytest.raises(ValidationError, match="max_gap_s"):
        CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": gap_s}})
