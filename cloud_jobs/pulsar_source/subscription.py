"""What the source keeps with its subscription on the broker: by it a position of another life is told. Pure.

A broker opens a new ledger each time it loads a topic or rolls it over, and says when: that time is an *opening*.
Ledger numbers come again after older disks were restored, openings do not. Each opening in which a batch is planned is
noted before Spark's log has the batch: a log that knows an opening which the broker does not know was written on other
disks. The opening in which a batch was acknowledged is noted after Spark's log has it: a broker that is ahead of the
log shows that the log was set back.

A subscription is created in two steps, so the first one says what the second one is to be: whoever finds it between the
two, after the process that created it ended, brings the cursor to its start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

_ID = "waybill-subscription-id"
_PLANNED = "waybill-planned-openings"
_ACKNOWLEDGED = "waybill-acknowledged-opening"
_CHUNKED = "waybill-chunked"
_STARTING = "waybill-starting-position"
MAX_PLANNED = 16


@dataclass(frozen=True, slots=True)
class SubscriptionProperties:
    """The properties of a durable subscription that are ours; they end with it, with its topic and with the disks.

    `number`: drawn once. `planned`: the newest openings in which batches were planned, oldest first. `acknowledged`:
    the newest one in which a batch was acknowledged. `chunked`: a task has met messages in chunks. `starting`: where
    the cursor is still to be set (earliest or a time); empty once it is. A *mark* is what an offset keeps of them for
    one position.
    """

    subscription_id: str
    planned: tuple[str, ...] = ()
    acknowledged: str = ""
    chunked: bool = False
    starting: str = ""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self | None:
        """What the broker keeps; None when it is nothing of ours."""
        if _ID not in properties:
            return None
        planned = tuple(filter(None, properties.get(_PLANNED, "").split(",")))
        acknowledged, starting = properties.get(_ACKNOWLEDGED, ""), properties.get(_STARTING, "")
        return cls(properties[_ID], planned, acknowledged, _CHUNKED in properties, starting)

    def to_properties(self) -> dict[str, str]:
        """The reverse of `from_properties`."""
        properties = {
            _ID: self.subscription_id,
            _PLANNED: ",".join(self.planned),
            _ACKNOWLEDGED: self.acknowledged,
            _STARTING: self.starting,
        }
        return properties | ({_CHUNKED: "true"} if self.chunked else {})

    @classmethod
    def created(cls, number: str, start: str | datetime) -> Self:
        """Of a new subscription that begins at `start`. A broker creates each at the latest entry."""
        text = start.isoformat() if isinstance(start, datetime) else start
        return cls(number, starting="" if text == "latest" else text)

    def starting_ms(self) -> int | None:
        """The publish time from which the cursor is to deliver; None for the earliest message."""
        try:
            return max(0, int(datetime.fromisoformat(self.starting).timestamp() * 1000))
        except (ValueError, OverflowError):
            return None  # who may consume may write anything here: nothing is left out

    def placed(self) -> Self:
        """With its cursor where it is to begin."""
        return replace(self, starting="")

    def with_planned(self, created: str) -> Self:
        """With a batch that is planned in an opening."""
        return replace(self, planned=(*self.planned, created)[-MAX_PLANNED:]) if self._index(created) < 0 else self

    def with_acknowledged(self, created: str) -> Self:
        """With a batch that is acknowledged in an opening."""
        return replace(self, acknowledged=created)

    def with_chunks(self) -> Self:
        """With a message in chunks that a task has met."""
        return replace(self, chunked=True)

    def generation(self, created: str = "") -> str:
        """The text that stands for a position which was planned in an opening; without one for a cursor's."""
        return f"{self.subscription_id}@{created}" if created else self.subscription_id

    def has_read(self, generation: str) -> bool:
        """Whether the position of that mark was read through this subscription, on these disks."""
        number, _, created = generation.partition("@")
        if number != self.subscription_id:
            return False
        forgotten = len(self.planned) == MAX_PLANNED and created < self.planned[0]
        return not created or forgotten or self._index(created) >= 0

    def acknowledged_after(self, generation: str) -> bool:
        """Whether batches were acknowledged in a later opening than that of the mark."""
        created = generation.partition("@")[2]
        return bool(created) and self._index(self.acknowledged) > self._index(created)

    def _index(self, created: str) -> int:
        return self.planned.index(created) if created in self.planned else -1


def ledger_created_in(generation: str) -> str:
    """The opening of a mark; empty where it has none."""
    return generation.partition("@")[2]
