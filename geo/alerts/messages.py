"""The bytes of alerts and verdicts: JSON in UTF-8, judged where it enters."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from geo.alerts.errors import MalformedAlert
from waybill.record import DEVICE_PATTERN, InvalidJson, parse_json
from waybill.settings import one_line

# forty times a real one
MAX_BYTES: Final = 16 << 10
_MAX_SIGNED: Final = (1 << 63) - 1

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
"""What `geo.spatial.fact_id` gives."""
Name = Annotated[str, Field(min_length=1, max_length=256)]
"""An id of a fence, gate or region."""
DeviceName = Annotated[str, Field(pattern=f"^{DEVICE_PATTERN.pattern}$")]
Milliseconds = Annotated[int, Field(ge=0, le=253_402_300_799_999)]
"""Since 1970, up to the year 9999."""
Whole = Annotated[int, Field(ge=0, le=_MAX_SIGNED)]

_Model = TypeVar("_Model", bound="AlertMessage")


class AlertMessage(BaseModel):
    """What travels as one JSON object: frozen, typed, with unknown names ignored, so that newer ones may have more."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, strict=True)

    def encoded(self) -> bytes:
        """Its bytes: the same for all that say the same."""
        return self.model_dump_json(exclude_none=True).encode()


def decoded(kind: type[_Model], data: bytes) -> _Model:
    """The message of some bytes. Raises MalformedAlert, and nothing else for any bytes."""
    try:
        # bounded first: the parser of the model would unpack whatever is nested
        parse_json(data, max_bytes=MAX_BYTES, max_depth=4, max_values=200)
    except InvalidJson as error:
        raise MalformedAlert(f"not JSON: {one_line(str(error))}") from error
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        # the first is enough to find the sender, and one line is what a log shows
        fault = error.errors(include_url=False, include_input=False)[0]
        place = one_line(".".join(map(str, fault["loc"])) or "it", 100)
        raise MalformedAlert(f"{place}: {one_line(fault['msg'], 200)}") from error
