import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.topics import TopicListing, TopicName, origin_cluster
from geo.replication.topic_naming import split_partition


@pytest.mark.parametrize("text", ["persistent://t/n/x", "t/n/x"])
def test_a_topic_is_named_in_full_or_by_its_path(text: str) -> None:
    assert str(TopicName.parse(text)) == "persistent://t/n/x"


def test_a_bare_name_is_in_public_default():
    assert str(TopicName.parse("x")) == "persistent://public/default/x"


@pytest.mark.parametrize("text", ["", "a/b", "t/n/x/y", "non-persistent://t/n/x", "t//x"])
def test_other_text_is_no_topic(text: str) -> None:
    with pytest.raises(ValueError, match="is not a topic"):
        TopicName.parse(text)


UNREADABLE = [".", "..", "a\0b", "x" * 5_000, "é" * 1_000]
"""A broker accepts them from any producer, and its admin REST answers 400, 404 or 405 to all questions about them."""


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_name_that_no_address_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        TopicName.parse(f"persistent://t/n/{name}")


@pytest.mark.parametrize("name", ["b ", " c", "e\n", "tab\t", " ", "\u3000", "a?b", "a%2Fb", "...", "d-partition-0"])
def test_blanks_and_all_other_letters_belong_to_the_name(name: str) -> None:
    assert TopicName.parse(f"persistent://t/n/{name}") == TopicName("t", "n", name)
    assert str(TopicName("t", "n", name)) == f"persistent://t/n/{name}"


def names_of(listing: TopicListing) -> list[str]:
    return [topic.name for topic in listing.topics]


def test_a_name_like_a_partitions_is_a_topic_where_there_is_no_partitioned_one():
    plain = [f"persistent://t/n/{name}" for name in ("p-partition-0", "p-partition-1", "d-partition-0", "a")]
    assert names_of(TopicListing.of(plain, ["persistent://t/n/p"])) == ["a", "d-partition-0", "p"]


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


@given(st.lists(st.text()), st.lists(st.text()))
def test_no_list_of_names_stops_a_query(plain: list[str], partitioned: list[str]) -> None:
    for domain in ("", "persistent://", "persistent://t/n/"):
        TopicListing.of([domain + name for name in plain], [domain + name for name in partitioned])


@pytest.mark.parametrize(
    ("producer", "cluster"),
    [("eu-0-17", "eu"), ("us-west-0-3", "us-west"), ("gateway", "hq"), ("xx-0-1", "hq"), ("", "hq")],
)
def test_the_origin_is_known_by_names_that_brokers_draw_and_by_no_others(producer: str, cluster: str) -> None:
    assert origin_cluster(producer, frozenset({"eu", "us-west", "hq"}), "hq") == cluster
