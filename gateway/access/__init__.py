"""The access daemon of a region: applies the device registry to the broker."""

from gateway.access.config import AccessSettings

__all__ = ["AccessSettings"]
