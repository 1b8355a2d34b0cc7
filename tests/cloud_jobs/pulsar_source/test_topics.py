import pytest

from cloud_jobs.pulsar_source.topics import TopicName, origin_cluster, split_partition


@pytest.mark.parametrize("text", ["persistent://t/n/x", " t/n/x "])
def test_a_topic_is_named_in_full_or_by_its_path(text: str):
    assert str(TopicName.parse(text)) == "persistent://t/n/x"


def test_a_bare_name_is_in_public_default():
    assert str(TopicName.parse("x")) == "persistent://public/default/x"


@pytest.mark.parametrize("text", ["", "a/b", "t/n/x/y", "non-persistent://t/n/x", "t//x"])
def test_other_text_is_no_topic(text: str):
    with pytest.raises(ValueError, match="is no topic"):
        TopicName.parse(text)


def test_the_partition_is_the_number_after_the_last_mark():
    assert split_partition("persistent://t/n/x-partition-12") == ("persistent://t/n/x", 12)
    assert split_partition("persistent://t/n/x-partition-a") == ("persistent://t/n/x-partition-a", -1)


@pytest.mark.parametrize(
    ("producer", "cluster"),
    [("eu-0-17", "eu"), ("us-west-0-3", "us-west"), ("gateway", "hq"), ("xx-0-1", "hq"), ("", "hq")],
)
def test_the_origin_is_told_by_names_that_brokers_draw_and_by_no_others(producer: str, cluster: str):
    assert origin_cluster(producer, frozenset({"eu", "us-west", "hq"}), "hq") == cluster
