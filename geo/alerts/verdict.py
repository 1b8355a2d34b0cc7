"""What the centre says of an alert, or of an event of which no region said anything.

The form of a correction is that of EPCIS 2.0 (`errorDeclaration` with a reason and the ids of corrective events).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from geo.alerts.messages import AlertMessage, DeviceName, Id, Milliseconds, Name, Whole, decoded
from geo.spatial.event_ids import Kind

__all__ = ["AlertVerdict", "ErrorReason", "FinalEvent", "VerdictKind", "decode_verdict", "encode_verdict"]


class VerdictKind(StrEnum):
    """What became of an alert."""

    CONFIRMED = "confirmed"
    """It happened, as the region said."""
    CORRECTED = "corrected"
    """It happened, at another time or with another value."""
    WITHDRAWN = "withdrawn"
    """It did not happen, or nothing that the centre received says so."""
    LATE = "late"
    """It happened, and no region said so."""


class ErrorReason(StrEnum):
    """Why an alert was wrong, in the words of EPCIS 2.0 (`did_not_occur`, `incorrect_data`) and three of ours."""

    DID_NOT_OCCUR = "did_not_occur"
    INCORRECT_DATA = "incorrect_data"
    NOT_RECEIVED = "not_received"
    """The centre had not the record that the alert names for as long as an alert may be provisional, or its device
    declares it lost. This and the next two say what was not known then: a later revision may say what is so."""
    NOT_COMPUTED = "not_computed"
    """The centre had the record, and for so long had not computed its events."""
    INCOMPLETE = "incomplete"
    """Events are computed with the record, and other records are missing by which the region may have seen it."""


Reason = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""An `ErrorReason`; or what a newer centre says, of which is known that it is a reason."""


class FinalEvent(AlertMessage):
    """What the centre says that happened."""

    kind: Kind
    place: Name
    t_ms: Milliseconds
    value: float = Field(0.0, ge=0)
    epoch: Whole
    seq: Whole


class AlertVerdict(AlertMessage):
    """A verdict. Of each `id` the one with the highest `revision` is in force: late records may change it, also after
    the alert was withdrawn because they were missing.

    `event`: what is in force at the centre (None: withdrawn). `reason`: of one that is corrected or withdrawn, an
    `ErrorReason`, or a word that a newer centre says.
    `alerted`: what the region had said, as in EPCIS a declaration of an error repeats the event; None: nothing, the
    same as `event`, or it is not said. `previous`: what the revision before said, where that is neither of the two: so
    whoever heard of one of these finds that it was his. `corrective_ids`: events that stand in the place of a withdrawn
    one. `decided_ms`: by the centre's clock.
    """

    id: Id
    revision: Whole
    verdict: VerdictKind
    tenant: DeviceName
    device: DeviceName
    event: FinalEvent | None = None
    reason: Reason | None = None
    corrective_ids: tuple[Id, ...] = Field((), max_length=16)
    alerted: FinalEvent | None = None
    previous: FinalEvent | None = None
    decided_ms: Milliseconds


def encode_verdict(verdict: AlertVerdict) -> bytes:
    """A verdict as it travels."""
    return verdict.encoded()


def decode_verdict(data: bytes) -> AlertVerdict:
    """The verdict of a message. Raises MalformedAlert, and nothing else for any bytes."""
    return decoded(AlertVerdict, data)
