"""Names of topics, and their paths in the admin REST interface. Pure."""

import re
from urllib.parse import quote

__all__ = ["PERSISTENT", "is_addressable", "is_brokers_own", "partition_name", "split_partition", "topic_path"]

PERSISTENT = "persistent://"
_BROKERS_OWN = "__"  # policies, transactions, the states of functions
_MAX_QUOTED = 4096  # Pulsar takes a request of 8 KiB, headers and token included
# As Pulsar reads it: `x-partition-01` is a topic of its own.
_PARTITION = re.compile(r"(?P<base>.*[^/])-partition-(?P<number>0|[1-9][0-9]{0,8})", re.DOTALL)


def topic_path(topic: str) -> str:
    """The path of tenant/namespace/topic below /admin/v2."""
    return "/".join(["persistent", *(quote(level, safe="") for level in topic.split("/", 2))])


def is_addressable(topic: str) -> bool:
    """Whether a URL of the admin interface can name this topic: producers may create topics that it cannot."""
    levels = topic.removeprefix(PERSISTENT).split("/")
    # "." and ".." are steps of a path: a client resolves them to another path.
    return not {"", ".", ".."}.intersection(levels) and "\0" not in topic and len(quote(topic)) <= _MAX_QUOTED


def is_brokers_own(topic: str) -> bool:
    return topic.rpartition("/")[2].startswith(_BROKERS_OWN)


def partition_name(topic: str, number: int) -> str:
    return f"{topic}-partition-{number}"


def split_partition(topic: str) -> tuple[str, int]:
    """`t-partition-3` -> (`t`, 3); a topic that is not partitioned -> (itself, -1)."""
    match = _PARTITION.fullmatch(topic)
    return (match["base"], int(match["number"])) if match else (topic, -1)
