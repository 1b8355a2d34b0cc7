"""A contract at a moment that is refused can be corrected by any later one: model and key agree on moments."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloud_jobs.billing.contracts import Tariff
from geo.reference.moments import UNKNOWN_BEGINNING, beginning, ending
from tests.cloud_jobs.billing.contracts.makers import tariff

OFFSETS = st.integers(-14 * 4, 14 * 4).map(lambda quarters: timezone(quarters * timedelta(minutes=15)))
MOMENTS = st.one_of(
    st.datetimes(timezones=st.none() | OFFSETS).map(datetime.isoformat),
    st.integers(0, 10**6).map(lambda n: f"{(datetime(1960, 1, 1) + n * timedelta(hours=11.25)).isoformat()}+05:45"),
    st.text(max_size=12),
)


@given(MOMENTS)
@example("1971-01-01T00:00:00+14:00")
@example("2999-12-31T23:45:00-14:00")
@example("0001-01-01T00:00:00+14:00")
def test_a_version_has_a_known_beginning_just_where_its_model_takes_the_moment(text: str) -> None:
    body = tariff(effective_from=text)
    try:
        made = Tariff.model_validate(body)
    except ValidationError:
        assert beginning("tariff", json.dumps(body)) in {UNKNOWN_BEGINNING, ""}
    else:
        assert datetime.fromisoformat(beginning("tariff", json.dumps(body))) == made.effective_from


ENDLESS = ["[]", "not json", "[" * 100_000, "{}", '{"effective_until": 5}', '{"effective_until": "2026-03-01T00:00"}']


@pytest.mark.parametrize("body", ENDLESS, ids=lambda body: body[:12])
def test_a_body_that_states_no_instant_states_no_end(body: str) -> None:
    assert ending("account", body) is None
