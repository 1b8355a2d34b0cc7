"""What may pass: a batch is judged by its own header and by the topic it came on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from telemetry import DEVICE_PATTERN, Header, WireError, read_header

SUBSCRIPTION = "$share/gateway/waybill/1/+/+/batch"


class Address(NamedTuple):
    """Who sent a batch, by the topic that the broker let it publish on."""

    tenant: str
    device: str

    @property
    def ack_topic(self) -> str:
        """Where this device hears what is safe."""
        return f"waybill/1/{self.tenant}/{self.device}/ack"

    @property
    def config_topic(self) -> str:
        """Where this device hears of new settings."""
        return f"waybill/1/{self.tenant}/{self.device}/config"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a batch does not pass: a short stable word, and the sentence for people. `header`: if it is the device's."""

    reason: str
    detail: str
    header: Header | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What this gateway accepts. No `tenants` means every tenant that the broker lets in."""

    max_batch_bytes: int
    tenants: Collection[str] = ()


def address_of(topic: str) -> Address:
    """The sender of `waybill/1/{tenant}/{device}/batch`; the subscription lets no other form through."""
    _, _, tenant, device, _ = topic.split("/")
    return Address(tenant, device)


def judge(rules: Rules, sender: Address, payload: bytes) -> Header | Refusal:
    """The batch's header if it may pass: whole, honest about its ranges, and from the device that it names."""
    if rules.tenants and sender.tenant not in rules.tenants:
        return Refusal("unknown-tenant", f"tenant {sender.tenant!r} is not served here")
    if not DEVICE_PATTERN.fullmatch(sender.tenant):
        return Refusal("bad-tenant", f"{sender.tenant[:80]!r} is no name of a tenant")
    if len(payload) > rules.max_batch_bytes:
        detail = f"{len(payload)} bytes, at most {rules.max_batch_bytes} are taken"
        return Refusal("too-large", detail, _own_header(sender, payload))
    try:
        header = read_header(payload)
    except WireError as error:
        return Refusal(error.reason, str(error))
    if header.device != sender.device:
        return Refusal("wrong-device", f"a batch of {header.device!r} on the topic of {sender.device!r}")
    return header


def _own_header(sender: Address, payload: bytes) -> Header | None:
    """What a batch says of itself, for its own device; None if it says nothing that can be relied on."""
    try:
        header = read_header(payload)
    except WireError:
        return None
    return header if header.device == sender.device else None
