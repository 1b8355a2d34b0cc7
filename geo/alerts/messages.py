"""The bytes of alerts and verdicts: JSON in UTF-8, validated where it enters."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from geo.spatial.event_ids import DayEvent, Kind
from waybill.record import DEVICE_PATTERN, InvalidJson, parse_json
from waybill.settings import one_line

# Errors.


class AlertError(Exception):
    """The base of all."""


class MalformedAlert(AlertError):
    """Bytes that are no alert and no verdict; the text says why."""


class UnusableRule(AlertError):
    """A text that is no alert rule; the message names each fault with its place."""


# forty times a real one
MAX_BYTES: Final = 16 << 10
_MAX_SIGNED: Final = (1 << 63) - 1

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
"""An id from `geo.spatial.fact_id`."""
Name = Annotated[str, Field(min_length=1, max_length=256)]
"""An id of a fence, gate or region."""
DeviceName = Annotated[str, Field(pattern=f"^{DEVICE_PATTERN.pattern}$")]
Milliseconds = Annotated[int, Field(ge=0, le=253_402_300_799_999)]
"""Since 1970, up to the year 9999."""
Whole = Annotated[int, Field(ge=0, le=_MAX_SIGNED)]

_Model = TypeVar("_Model", bound="AlertMessage")


class AlertMessage(BaseModel):
    """A message that travels as one JSON object. Unknown names are ignored, so newer senders may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, strict=True)

    def encoded(self) -> bytes:
        """The bytes: the same for equal messages."""
        return self.model_dump_json(exclude_none=True).encode()


def decoded(kind: type[_Model], data: bytes) -> _Model:
    """The message in some bytes. Raises MalformedAlert, and nothing else for any bytes."""
    try:
        # bound the nesting before the model is parsed
        parse_json(data, max_bytes=MAX_BYTES, max_depth=4, max_values=200)
    except InvalidJson as error:
        raise MalformedAlert(f"not JSON: {one_line(str(error))}") from error
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        # the first fault is enough to find the sender
        fault = error.errors(include_url=False, include_input=False)[0]
        place = one_line(".".join(map(str, fault["loc"])) or "it", 100)
        raise MalformedAlert(f"{place}: {one_line(fault['msg'], 200)}") from error


# Alerts.

# a device begins an epoch with a new buffer
MAX_EPOCHS: Final = 16


class Alert(AlertMessage):
    """An alert from a region. It is *provisional*: the centre decides later (`AlertVerdict`).

    `id`, `kind`, `place` and `value` are those of the event (`geo.spatial`), which has the same id at the centre.
    `epoch` and `seq` name the fix at its time or the first one after it. `t_ms`: device time, since 1970.
    `received_ms`: when the region's cluster had the batch of the fix that showed it; `raised_ms`: when it was raised,
    before it is sent; both by the region's clocks. `seen_until`: the newest seq of each epoch that the region had. The
    centre needs these records before it says that the event did not happen. Empty: not stated.
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

    # without the region's own times, for the comparison with the centre
    @property
    def event(self) -> DayEvent:
        return DayEvent(self.t_ms, self.kind, self.place, self.value, self.epoch, self.seq)


def encode_alert(alert: Alert) -> bytes:
    return alert.encoded()


def decode_alert(data: bytes) -> Alert:
    """Raises MalformedAlert, and nothing else for any bytes."""
    return decoded(Alert, data)


# Verdicts.


class VerdictKind(StrEnum):
    """The centre's decision about an alert."""

    CONFIRMED = "confirmed"
    """It happened, as the region said."""
    CORRECTED = "corrected"
    """It happened, at another time or with another value."""
    WITHDRAWN = "withdrawn"
    """It did not happen, or no record at the centre shows it."""
    LATE = "late"
    """It happened without an alert."""


class ErrorReason(StrEnum):
    """Why an alert was wrong, in the words of EPCIS 2.0 (`did_not_occur`, `incorrect_data`) and three of ours."""

    DID_NOT_OCCUR = "did_not_occur"
    INCORRECT_DATA = "incorrect_data"
    NOT_RECEIVED = "not_received"
    """The record that the alert names did not arrive while the alert could be provisional, or its device declares it
    lost. This and the next two mean missing data: a later revision may decide."""
    NOT_COMPUTED = "not_computed"
    """The centre had the record, but did not compute its events in that time."""
    INCOMPLETE = "incomplete"
    """Events were computed with the record, but other records that the region may have used are missing."""


Reason = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""An `ErrorReason`, or the reason of a newer centre."""


class FinalEvent(AlertMessage):
    kind: Kind
    place: Name
    t_ms: Milliseconds
    value: float = Field(0.0, ge=0)
    epoch: Whole
    seq: Whole


class AlertVerdict(AlertMessage):
    """A verdict. Of each `id` the highest `revision` is in force: late records may change it, even after a withdrawal.

    `event`: what is in force at the centre (None: withdrawn). `reason`: of a corrected or withdrawn alert, an
    `ErrorReason` or the word of a newer centre. `alerted`: what the region had said; None if it said nothing, or the
    same as `event`. `previous`: what the revision before said, if it differs from both, so that a receiver of any of
    them can match it. `decided_ms`: by the centre's clock.
    """

    id: Id
    revision: Whole
    verdict: VerdictKind
    tenant: DeviceName
    device: DeviceName
    event: FinalEvent | None = None
    reason: Reason | None = None
    alerted: FinalEvent | None = None
    previous: FinalEvent | None = None
    decided_ms: Milliseconds


def encode_verdict(verdict: AlertVerdict) -> bytes:
    return verdict.encoded()


def decode_verdict(data: bytes) -> AlertVerdict:
    """Raises MalformedAlert, and nothing else for any bytes."""
    return decoded(AlertVerdict, data)
