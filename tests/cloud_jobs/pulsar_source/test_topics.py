import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.options import TopicListing, TopicName
from geo.replication.topic_naming import split_partition

UNREADABLE = [".", "..", "a\0b", "x" * 5_000, "é" * 1_000]
"""A broker accepts them from any producer, and its admin REST answers 400, 404 or 405 to all questions about them."""


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_name_that_no_address_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        TopicName.parse(f"persistent://t/n/{name}")


def names_of(listing: TopicListing) -> list[str]:
    return [topic.name for topic in listing.topics]


def test_what_no_address_can_name_is_listed_by_name_and_stops_nothing():
    plain = [f"persistent://t/n/{name}" for name in (*UNREADABLE, "b ", "e\n", "tab\t", "__change_events")]
    listing = TopicListing.of([*plain, "non-persistent://t/n/c"], [])
    assert names_of(listing) == ["b ", "e\n", "tab\t"]
    assert sorted(listing.unreadable) == sorted(f"persistent://t/n/{name}" for name in UNREADABLE)


local_names = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1)
local_names |= st.sampled_from([".", "..", "a\0b", "x", "x-partition-0", "x-partition-01", "__x"])


@given(st.lists(local_names), st.lists(local_names))
def test_every_topic_that_is_kept_is_read_or_listed_or_is_a_partition_or_the_brokers_own(
    plain: list[str], partitioned: list[str]
) -> None:
    listing = TopicListing.of(
        [f"persistent://t/n/{name}" for name in plain], [f"persistent://t/n/{n}" for n in partitioned]
    )
    unreadable = [name.rpartition("/")[2] for name in listing.unreadable]
    assert len(set(names_of(listing))) == len(listing.topics)
    for name in {*plain, *partitioned} - {*names_of(listing), *unreadable}:
        assert name.startswith("__") or split_partition(f"persistent://t/n/{name}")[0] in [
            f"persistent://t/n/{parent}" for parent in partitioned
        ]
