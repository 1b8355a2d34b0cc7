"""Up to where a partition is rewound: what is before that and what comes have no message in common, none is between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.standby import RewindEnd
from waybill.pulsar.pulsar_positions import MessagePosition

POSITIONS = st.builds(MessagePosition, st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 3))


@given(st.lists(POSITIONS, unique=True), POSITIONS)
def test_what_comes_after_the_first_unacknowledged_message_is_not_rewound(
    topic: list[MessagePosition], first: MessagePosition
) -> None:
    end = RewindEnd(first, included=False)
    assert [one for one in sorted(topic) if end.is_before(one)] == [one for one in sorted(topic) if one >= first]


@given(st.lists(POSITIONS, unique=True), POSITIONS)
def test_what_comes_after_the_last_message_is_not_rewound(topic: list[MessagePosition], last: MessagePosition) -> None:
    end = RewindEnd(last, included=True)
    assert [one for one in sorted(topic) if end.is_before(one)] == [one for one in sorted(topic) if one > last]
