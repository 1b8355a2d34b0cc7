"""What is valid: a message is validated by the topic that it came on, and a batch by its own header."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from waybill.record import Header, RefusalReason, WireError, parse_device_topic, read_header, validate


class Sender(NamedTuple):
    """Who sent a message, by the topic that the broker let it publish on."""

    tenant: str
    device: str


UNKNOWN_SENDER = Sender("", "")
"""The sender of a message whose topic no device can have: no acknowledgement is sent."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a batch does not pass, and the sentence for people. `header`: if it is the device's."""

    reason: RefusalReason
    detail: str
    header: Header | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """What this gateway accepts. No `tenants` means every tenant that the broker lets in.

    `refusal_of`: what the device registry says against a sender, if it is asked.
    """

    max_batch_bytes: int
    tenants: Collection[str] = ()
    refusal_of: Callable[[Sender], Refusal | None] | None = None


def sender_of(topic: str) -> Sender:
    """The sender of a message on this topic; UNKNOWN_SENDER when it is not the topic of a device."""
    parsed = parse_device_topic(topic)
    return Sender._make(parsed[:2]) if parsed is not None else UNKNOWN_SENDER


def validate_batch(rules: BatchRules, sender: Sender, payload: bytes) -> Header | Refusal:
    """The batch's header if it may pass: its own device's, and readable at the centre to its last value."""
    if (refusal := _sender_refusal(rules, sender)) is not None:
        return refusal
    # Before `validate`, whose work grows with the bytes.
    if len(payload) > rules.max_batch_bytes:
        detail = f"{len(payload)} bytes, at most {rules.max_batch_bytes} are taken"
        return Refusal(RefusalReason.TOO_LARGE, detail, own_header(sender, payload))
    try:
        header = validate(payload, sender.device)
    except WireError as error:
        return Refusal(error.reason, str(error), own_header(sender, payload))
    # The broker vouches for the topic, nobody for the header: it could write another device's records.
    if header.device != sender.device:
        return Refusal(RefusalReason.WRONG_DEVICE, f"a batch of {header.device!r} on the topic of {sender.device!r}")
    return header


def _sender_refusal(rules: BatchRules, sender: Sender) -> Refusal | None:
    """Why nothing of a sender is taken."""
    if sender == UNKNOWN_SENDER:
        return Refusal(RefusalReason.BAD_TOPIC, "its levels are not the names of a tenant and a device")
    if rules.tenants and sender.tenant not in rules.tenants:
        return Refusal(RefusalReason.UNKNOWN_TENANT, f"tenant {sender.tenant!r} is not served here")
    return None if rules.refusal_of is None else rules.refusal_of(sender)


def own_header(sender: Sender, payload: bytes) -> Header | None:
    """What a batch says of itself, for its own device; None if it says nothing that can be relied on."""
    try:
        header = read_header(payload)
    except WireError:
        return None
    return header if header.device == sender.device else None
