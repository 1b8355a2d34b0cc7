"""Errors of telemetry bytes."""

from __future__ import annotations

from enum import StrEnum


class RefusalReason(StrEnum):
    """Why a batch is refused: the word in acknowledgements, dead letters and metrics."""

    NOT_A_BATCH = "not-a-batch"
    """The bytes do not begin like a batch."""
    UNKNOWN_VERSION = "unknown-version"
    """It is of a wire version that this code does not read."""
    TRUNCATED = "truncated"
    """It is shorter than it states."""
    CHECKSUM = "checksum"
    """Its bytes changed on the way."""
    TOO_LARGE = "too-large"
    """It, or what it unpacks to, is larger than the format, the gateway or the cluster allows."""
    INCONSISTENT_RANGES = "inconsistent-ranges"
    """Its seqs, head and tombstones contradict each other."""
    MALFORMED = "malformed"
    """Its checksum is right, but its content does not follow the format."""
    BAD_TOPIC = "bad-topic"
    """Its topic has no valid names of a tenant and a device: no acknowledgement is sent."""
    UNKNOWN_TENANT = "unknown-tenant"
    """Its tenant is not served here."""
    UNKNOWN_DEVICE = "unknown-device"
    """The device registry does not have this device."""
    DEVICE_NOT_ACTIVE = "device-not-active"
    """The device is suspended or revoked."""
    WRONG_DEVICE = "wrong-device"
    """It names another device than its topic."""
    NOT_FOR_PULSAR = "not-for-pulsar"
    """Pulsar can never accept it."""
    INTERNAL_ERROR = "internal-error"
    """Handling it raised an error."""
    SLOW_DOWN = "slow-down"
    """Its tenant or device sends more than its share: send it again after the pause."""
    LARGER_THAN_THE_BROKER_TAKES = "larger-than-the-broker-takes"
    """Set by the agent: the region's MQTT broker accepts no packet of that size."""


class TelemetryError(Exception):
    """Base of all errors of this package."""


class InvalidJson(TelemetryError):
    """A JSON text is refused.

    `reason`: too-large, too-deep, too-many-values, not-utf-8, not-json, duplicate-name, number-out-of-range or
    lone-surrogate. `position`: the offset of the byte, where it is known.
    """

    def __init__(self, reason: str, detail: str, position: int | None = None) -> None:
        super().__init__(detail if position is None else f"{detail}, at byte {position}")
        self.reason = reason
        self.position = position


class WireError(TelemetryError):
    reason: RefusalReason


class NotABatch(WireError):
    reason = RefusalReason.NOT_A_BATCH


class UnknownVersion(WireError):
    reason = RefusalReason.UNKNOWN_VERSION

    def __init__(self, version: int) -> None:
        super().__init__(f"batch of wire version {version}; this code reads version 2")


class Truncated(WireError):
    reason = RefusalReason.TRUNCATED

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"batch of {expected} bytes ends after {got}")


class ChecksumMismatch(WireError):
    reason = RefusalReason.CHECKSUM

    def __init__(self, *, stated: int, computed: int) -> None:
        super().__init__(f"batch states checksum {stated:08x}, its bytes have {computed:08x}")


class TooLarge(WireError):
    reason = RefusalReason.TOO_LARGE


class InconsistentRanges(WireError):
    reason = RefusalReason.INCONSISTENT_RANGES


class Malformed(WireError):
    reason = RefusalReason.MALFORMED
