"""The access daemon of a region: who may have a session on its broker, by the device registry."""

from gateway.access.config import AccessSettings
from gateway.access.rules import broker_rules

__all__ = ["AccessSettings", "broker_rules"]
