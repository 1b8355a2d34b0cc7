"""Up to where a partition is rewound: what is before that and what comes have no message in common, none is between."""

from __future__ import annotations

from itertools import pairwise

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


@given(st.lists(POSITIONS, unique=True, min_size=1), POSITIONS)
def test_nothing_is_rewound_after_the_last_one(topic: list[MessagePosition], last: MessagePosition) -> None:
    end = RewindEnd(last, included=True)
    rewound = [one for one in sorted(topic) if not end.is_before(one)]
    assert not any(end.is_last(one) for one in rewound[:-1])
    assert last not in topic or end.is_last(rewound[-1])
    assert not RewindEnd(last, included=False).is_last(last), "it is not rewound at all"


def test_positions_stand_as_their_messages_came() -> None:
    came = [MessagePosition(3, 9, -1), MessagePosition(4, 0, 0), MessagePosition(4, 0, 1), MessagePosition(4, 1, 0)]
    assert all(before < after for before, after in pairwise(came))
