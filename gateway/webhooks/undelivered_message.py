"""A message that no webhook took, as it travels. Pure."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.webhooks.delivery import EndedDelivery, WebhookDelivery
from gateway.webhooks.errors import UndeliveredUnfit
from geo.alerts import MalformedAlert
from waybill.record import InvalidJson, parse_json
from waybill.settings import one_line

__all__ = ["UndeliveredMessage", "decode_undelivered", "encode_undelivered"]

MAX_BYTES: Final = 1 << 20
"""Of whoever writes it and whoever reads it; a body with all the rules that it names has a third of it."""
_Word = Annotated[str, Field(min_length=1, max_length=300)]


class UndeliveredMessage(BaseModel):
    """`body`: what was to be posted, as it is. `reason`: a word; `detail`: what was said last; `at_ms`: when it was
    given up."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    key: _Word
    webhook: _Word
    tenant: _Word
    rules: tuple[_Word, ...] = Field(max_length=10_000)
    reason: _Word
    detail: str = Field("", max_length=1000)
    attempts: int = Field(0, ge=0)
    at_ms: int = Field(ge=0)
    body: str

    @property
    def delivery(self) -> WebhookDelivery:
        """The same message, to be delivered again: with the same key and the same bytes."""
        return WebhookDelivery(self.key, self.webhook, self.tenant, self.rules, self.body.encode())


def encode_undelivered(ended: EndedDelivery, at_ms: int) -> bytes:
    """What is kept of a delivery that was given up, as whoever reads it takes it. Raises UndeliveredUnfit."""
    try:
        data = _undelivered_of(ended, at_ms).model_dump_json().encode()
        decode_undelivered(data)
    except (MalformedAlert, ValueError) as error:
        raise UndeliveredUnfit(f"{ended.delivery.key}: {one_line(str(error), 300)}") from error
    return data


def _undelivered_of(ended: EndedDelivery, at_ms: int) -> UndeliveredMessage:
    one = ended.delivery
    return UndeliveredMessage(
        key=one.key,
        webhook=one.webhook,
        tenant=one.tenant,
        rules=one.rules,
        reason=ended.reason,
        detail=one_line(one.detail, 300),
        attempts=one.attempts,
        at_ms=at_ms,
        body=one.body.decode(),
    )


def decode_undelivered(data: bytes) -> UndeliveredMessage:
    """The message of some bytes. Raises MalformedAlert, and nothing else for any bytes."""
    try:
        # whoever may write there may write anything: depth and size are bounded before it is read
        parse_json(data, max_bytes=MAX_BYTES, max_depth=4, max_values=20_000)
        return UndeliveredMessage.model_validate_json(data)
    except (InvalidJson, ValidationError) as error:
        raise MalformedAlert(f"no undelivered message: {one_line(str(error))}") from error
