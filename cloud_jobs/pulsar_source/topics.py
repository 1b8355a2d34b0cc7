"""Names of topics: `persistent://tenant/namespace/name`, the topics of a namespace. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from geo.replication.topic_naming import PERSISTENT, is_addressable, is_brokers_own, split_partition, topic_path

_MAX_SHOWN = 4096


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic by its three parts; `str` gives the full name."""

    tenant: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{PERSISTENT}{self.tenant}/{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`persistent://tenant/namespace/name`, `tenant/namespace/name` or `name` (in public/default).

        Blanks belong to the name. Raises ValueError for what is no topic, or one that no address can name.
        """
        scheme, _, path = text.rpartition("://")
        parts = path.split("/")
        if scheme not in {"", "persistent"} or not all(parts) or len(parts) not in {1, 3}:
            raise ValueError(f"{text!r} is not a topic: expected persistent://tenant/namespace/name")
        if not is_addressable(path):
            raise ValueError(f"{text[:_MAX_SHOWN]!r} cannot be read: no address of the admin REST can hold it")
        return cls("public", "default", parts[0]) if len(parts) == 1 else cls(*parts)

    @property
    def path(self) -> str:
        """The part of the admin REST address that names this topic, quoted."""
        return topic_path(f"{self.tenant}/{self.namespace}/{self.name}")

    @property
    def namespace_path(self) -> str:
        """The part of the admin REST address that names this topic's namespace, quoted."""
        return f"persistent/{quote(self.tenant, safe='')}/{quote(self.namespace, safe='')}"


@dataclass(frozen=True, slots=True)
class TopicListing:
    """The topics of a namespace, a partitioned one once, and the full names of those that cannot be read."""

    topics: tuple[TopicName, ...]
    unreadable: tuple[str, ...] = ()

    @classmethod
    def of(cls, plain: Collection[str], partitioned: Collection[str]) -> Self:
        """What a broker lists: each partition and each topic without any; and the partitioned ones.

        Passed over are topics that are kept nowhere, and the broker's own: their names begin with `__`.
        """
        # A name that looks like a partition's, of a topic that is not partitioned, is a topic like any other.
        names = {name for name in plain if split_partition(name)[0] not in partitioned}.union(partitioned)
        topics, unreadable = [], []
        for name in sorted(name for name in names if name.startswith(PERSISTENT)):
            try:
                topics.append(TopicName.parse(name))
            except ValueError:
                unreadable.append(name)
        return cls(tuple(topic for topic in topics if not is_brokers_own(topic.name)), tuple(unreadable))


def origin_cluster(producer: str, known: frozenset[str], read_from: str) -> str:
    """The cluster where a message entered, as far as its producer's name shows it.

    The Python client does not show the `replicated_from` field. A name that a broker drew itself is
    `cluster-instance-counter`, and it survives replication; any other name says nothing, and then it is `read_from`.
    """
    cluster, _, rest = producer.rpartition("-")
    cluster, _, instance = cluster.rpartition("-")
    drawn_by_broker = rest.isdigit() and instance.isdigit()
    return cluster if drawn_by_broker and cluster in known else read_from
