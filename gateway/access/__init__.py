"""The access daemon of a region: who may have a session on its broker, by the device registry."""

from gateway.access.config import AccessSettings

__all__ = ["AccessSettings"]
