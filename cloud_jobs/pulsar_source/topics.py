"""Names of topics: `persistent://tenant/namespace/name`, and the partitions of a partitioned one. Pure."""

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

_PARTITION = re.compile(r"^(?P<base>.+)-partition-(?P<number>\d+)$")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic by its three parts; `str` gives the full name."""

    tenant: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"persistent://{self.tenant}/{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`persistent://tenant/namespace/name`, `tenant/namespace/name` or `name` (in public/default)."""
        scheme, _, path = text.strip().rpartition("://")
        parts = path.split("/")
        if scheme not in {"", "persistent"} or not all(parts) or len(parts) not in {1, 3}:
            raise ValueError(f"{text!r} is no topic: expected persistent://tenant/namespace/name")
        if {".", ".."} & set(parts):
            raise ValueError(f"{text!r} is no topic: no part of it can be . or ..")
        return cls("public", "default", parts[0]) if len(parts) == 1 else cls(*parts)

    @property
    def path(self) -> str:
        """The part of the admin REST address that names this topic, quoted."""
        return f"{self.namespace_path}/{quote(self.name, safe='')}"

    @property
    def namespace_path(self) -> str:
        """The part of the admin REST address that names this topic's namespace, quoted."""
        return f"persistent/{quote(self.tenant, safe='')}/{quote(self.namespace, safe='')}"


def split_partition(topic: str) -> tuple[str, int]:
    """`t-partition-3` -> (`t`, 3); a topic that is not partitioned -> (itself, -1)."""
    match = _PARTITION.match(topic)
    return (match["base"], int(match["number"])) if match else (topic, -1)


def origin_cluster(producer: str, known: frozenset[str], read_from: str) -> str:
    """The cluster where a message entered, as far as its producer's name tells.

    The Python client does not show the `replicated_from` field. A name that a broker drew itself is
    `cluster-instance-counter`, and it survives replication; any other name says nothing, and then it is `read_from`.
    """
    cluster, _, rest = producer.rpartition("-")
    cluster, _, instance = cluster.rpartition("-")
    drawn_by_broker = rest.isdigit() and instance.isdigit()
    return cluster if drawn_by_broker and cluster in known else read_from
