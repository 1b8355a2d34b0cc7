"""The parts of a topic's name, as Pulsar reads them."""

import pytest

from geo.replication.topic_naming import is_addressable, partition_name, split_partition, topic_path


@pytest.mark.parametrize("end", ["a", "01", "-1", "1\n", "\u0663", "9999999999", ""])
def test_what_pulsar_does_not_read_as_a_number_is_no_partition(end: str) -> None:
    assert split_partition(f"persistent://t/n/x-partition-{end}") == (f"persistent://t/n/x-partition-{end}", -1)
    assert split_partition("persistent://t/n/-partition-3")[1] == -1


def test_the_name_of_a_partition_is_taken_apart_as_it_was_put_together() -> None:
    assert split_partition(partition_name("persistent://t/n/x-partition-1", 3)) == ("persistent://t/n/x-partition-1", 3)


def test_every_level_of_an_address_is_quoted_and_nothing_above_the_topic() -> None:
    assert topic_path("t/n/a b/c?") == "persistent/t/n/a%20b%2Fc%3F"


@pytest.mark.parametrize("name", [".", "..", "a\0b", "x" * 5_000, "é" * 1_000])
def test_a_name_that_no_address_can_hold_is_not_asked_for(name: str) -> None:
    assert not is_addressable(f"t/n/{name}")
    assert not is_addressable(f"persistent://t/n/{name}")
