"""Settings of the jobs that contradict each other are refused by name."""

import pytest
from pydantic import ValidationError

from cloud_jobs.config import MAX_GAP_S, CloudSettings
from cloud_jobs.pulsar_source.options import PulsarOptions

CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}


@pytest.mark.parametrize("gap_s", [MAX_GAP_S + 1, float("inf")])
def test_a_gap_of_more_than_a_day_is_refused(gap_s: float) -> None:
    settings = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]}
    assert CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": MAX_GAP_S}}).tracks.max_gap_s == MAX_GAP_S
    with pytest.raises(ValidationError, match="max_gap_s"):
        CloudSettings.model_validate(settings | {"tracks": {"max_gap_s": gap_s}})


def test_who_we_are_holds_for_what_is_read_too_and_is_shown_by_no_text() -> None:
    access = {"token": "s3cret", "tls_ca": "ca.pem", "tls_validate_hostname": False}
    settings = {"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER], "access": access}
    made = CloudSettings.model_validate(settings)
    options = PulsarOptions.parse(made.source_options | {"topics": "t"})
    assert options.access() == made.access
    assert "s3cret" not in repr(made) + made.model_dump_json()


def test_without_access_the_source_is_given_none() -> None:
    made = CloudSettings.model_validate({"lake": "lake", "checkpoints": "notes", "clusters": [CLUSTER]})
    assert made.source_options.keys() == {"clusters"}
