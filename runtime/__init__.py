"""Process infrastructure that every daemon and job shares. Each name is loaded when it is asked for.

So a job that replaces a file durably needs no MQTT client, and the agent no status server before somebody asks it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.backoff import Backoff
    from runtime.bounded_file import read_bounded, read_secret
    from runtime.broker_settings import BrokerSettings
    from runtime.durable_file import create_durably, replace_durably, sync_folder, writing_durably
    from runtime.logs import LogSettings, start_logging
    from runtime.mqtt_client import MqttClient, MqttMessage, MqttSessionOptions
    from runtime.signals import handle_signals, raise_on_signals, stop_on_signals
    from runtime.tls import TlsSettings, check_key_pair, load_key_pair, tls_context
    from runtime.token_bucket import TokenBucket
    from runtime.wakeup import WakeUp

__all__ = [
    "Backoff",
    "BrokerSettings",
    "LogSettings",
    "MqttClient",
    "MqttMessage",
    "MqttSessionOptions",
    "TlsSettings",
    "TokenBucket",
    "WakeUp",
    "check_key_pair",
    "create_durably",
    "handle_signals",
    "load_key_pair",
    "raise_on_signals",
    "read_bounded",
    "read_secret",
    "replace_durably",
    "start_logging",
    "stop_on_signals",
    "sync_folder",
    "tls_context",
    "writing_durably",
]
_HOMES = {
    "runtime.backoff": ("Backoff",),
    "runtime.bounded_file": ("read_bounded", "read_secret"),
    "runtime.broker_settings": ("BrokerSettings",),
    "runtime.durable_file": ("create_durably", "replace_durably", "sync_folder", "writing_durably"),
    "runtime.logs": ("LogSettings", "start_logging"),
    "runtime.mqtt_client": ("MqttClient", "MqttMessage", "MqttSessionOptions"),
    "runtime.signals": ("handle_signals", "raise_on_signals", "stop_on_signals"),
    "runtime.tls": ("TlsSettings", "check_key_pair", "load_key_pair", "tls_context"),
    "runtime.token_bucket": ("TokenBucket",),
    "runtime.wakeup": ("WakeUp",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
