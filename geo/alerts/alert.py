"""One alert: an event at a fence or gate, as a region saw it before the centre did."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from geo.alerts.messages import AlertMessage, DeviceName, Id, Milliseconds, Name, Whole, decoded
from geo.spatial.event_ids import DayEvent, Kind

__all__ = ["MAX_EPOCHS", "Alert", "decode_alert", "encode_alert"]

# a device begins an epoch with a new buffer: a few fixes are of one, or of two
MAX_EPOCHS: Final = 16


class Alert(AlertMessage):
    """What a region says at once. It is *provisional*: the centre says later whether it is so (`AlertVerdict`).

    `id`, `kind`, `place` and `value` are those of the event (`geo.spatial`), which has the same id at the centre:
    `epoch` and `seq` name the fix at its time or the first one after it. `t_ms`: device time, since 1970.
    `received_ms`: when the region's cluster had the batch of the fix by which it was seen; `raised_ms`: when it was
    raised, before it is sent; both by the region's clocks. `seen_until`: of each epoch of which it had fixes for this,
    the seq of the newest one; so the centre knows which records it must have before it says that the event did not
    happen. Empty: not said.
    """

    id: Id
    tenant: DeviceName
    device: DeviceName
    region: Name
    epoch: Whole
    seq: Whole
    kind: Kind
    place: Name
    t_ms: Milliseconds
    value: float = Field(0.0, ge=0)
    received_ms: Milliseconds
    raised_ms: Milliseconds
    seen_until: tuple[tuple[Whole, Whole], ...] = Field((), max_length=MAX_EPOCHS)

    # what is the centre's, too, apart from the region's own times: only that is compared
    @property
    def event(self) -> DayEvent:
        """What it says that happened."""
        return DayEvent(self.t_ms, self.kind, self.place, self.value, self.epoch, self.seq)


def encode_alert(alert: Alert) -> bytes:
    """An alert as it travels."""
    return alert.encoded()


def decode_alert(data: bytes) -> Alert:
    """The alert of a message. Raises MalformedAlert, and nothing else for any bytes."""
    return decoded(Alert, data)
