"""The id of a publication comes after whatever its publisher could see, whatever the clock says."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.identity.publication_id import RANDOM_BITS, is_publication_id, next_publication_id

clocks = st.integers(0, 2**47)
random_bits = st.integers(0, 2**RANDOM_BITS - 1)


@given(st.lists(st.tuples(clocks, random_bits), min_size=1))
def test_ids_that_are_drawn_one_after_the_other_sort_so_however_the_clock_jumps(drawn: list[tuple[int, int]]) -> None:
    ids: list[str] = []
    for now_ms, bits in drawn:
        ids.append(next_publication_id(ids[-1] if ids else None, now_ms, bits))
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(map(is_publication_id, ids))


@given(clocks, random_bits)
def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front(now_ms: int, bits: int) -> None:
    made = UUID(next_publication_id(None, now_ms, bits))
    assert (made.version, made.variant, made.int >> 80) == (7, RFC_4122, now_ms)


@pytest.mark.parametrize(
    "text", [None, "", "7", "0194F8A0-0000-7000-8000-000000000000", "0194f8a0-0000-4000-8000-000000000000", "{}"]
)
def test_what_does_not_sort_as_ids_do_is_none(text: str | None) -> None:
    assert not is_publication_id(text)


def test_after_the_last_id_there_is_none() -> None:
    with pytest.raises(ValueError, match="no publication id comes after"):
        next_publication_id("ffffffff-ffff-7fff-bfff-ffffffffffff", 0, 0)
    with pytest.raises(ValueError, match="is no publication id"):
        next_publication_id("yesterday", 0, 0)
