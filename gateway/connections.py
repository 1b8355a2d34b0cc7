"""Both connections of a gateway: opened when they are due, watched, and why they are not there."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from gateway.broker_link import BrokerLink
from gateway.config import GatewaySettings
from gateway.errors import BrokerUnreachable, GatewayError
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import MqttConnection
from gateway.tenant_producers import TenantProducers
from waybill.daemon.backoff import Backoff

_LOG = structlog.get_logger("gateway")


class Connections:
    """The broker's and Pulsar's. `clock` is asked again after what takes time; `random` gives numbers from 0 to 1.

    `before_connect` is called before a new connection to the broker: message ids of the old one mean nothing then.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        mqtt: MqttConnection,
        pulsar: TenantProducers,
        metrics: GatewayMetrics,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        before_connect: Callable[[], None],
    ) -> None:
        self._settings, self._mqtt, self._pulsar, self._metrics = settings, mqtt, pulsar, metrics
        self._clock, self._before_connect = clock, before_connect
        self._link = BrokerLink(settings.name, settings.mqtt, random, clock())
        self._pulsar_backoff = Backoff(settings.pulsar.backoff_first_s, settings.pulsar.backoff_max_s, random)
        self.last_error = f"opening Pulsar at {settings.pulsar.service_url}"
        """Why not both are up, or what is waited for; empty once they were."""

    @property
    def is_mqtt_up(self) -> bool:
        """Whether messages come from the broker."""
        return self._mqtt.is_subscribed

    @property
    def is_pulsar_up(self) -> bool:
        """Whether the producer of any tenant's batches is connected at this moment."""
        return self._pulsar.is_connected

    @property
    def are_up(self) -> bool:
        """Whether both are."""
        return self.is_mqtt_up and self.is_pulsar_up

    @property
    def problem(self) -> str:
        """Why connections to the broker do not last, or whom Pulsar does not serve; empty while all is well."""
        return self._link.problem or self._pulsar.problem

    def retry_delay_s(self, attempts: int) -> float:
        """How long to wait before a message is sent to Pulsar again."""
        return self._pulsar_backoff.delay_s(attempts)

    def open_due(self, now_s: float, *, has_room: bool) -> None:
        """Open what is not open and due. Pulsar first: without a producer nothing may be taken."""
        self._pulsar.open_due(now_s)
        self.finish_opening()
        if self._pulsar.is_open and has_room and self._link.is_due(now_s):
            self._connect_mqtt()

    def finish_opening(self) -> None:
        """Take over the producers of attempts at Pulsar that have ended, or say why there are none."""
        for opened in self._pulsar.finish_opening(self._clock):
            if opened.error is not None:
                self._log_error(opened.error)
                continue
            mqtt = self._settings.mqtt
            self.last_error = "" if self.is_mqtt_up else f"connecting to the MQTT broker at {mqtt.host}:{mqtt.port}"
            _LOG.info("pulsar is open", topic=self._settings.topic(opened.tenant, self._settings.pulsar.batches))

    def watch(self, now_s: float) -> None:
        """Notice that the subscription stands, or that the connection ended or does not come up."""
        if self._mqtt.is_subscribed:
            if not self._link.is_up:
                self._link.on_connected(now_s)
                self.last_error = ""
                _LOG.info("subscribed", host=self._settings.mqtt.host, port=self._settings.mqtt.port)
            return
        # A refused subscription leaves the socket open, and nothing comes on it.
        lost = self._mqtt.socket is None or bool(self._mqtt.last_error)
        if self._link.is_in_use and (lost or self._link.is_overdue(now_s)):
            why = self._mqtt.last_error or "the MQTT broker does not answer in time"
            self._metrics.on_connection_failed()
            is_unexplained = self._mqtt.is_closed_by_broker
            self._link.on_ended(why, now_s, is_unexplained=is_unexplained)
            self._log_error(BrokerUnreachable((is_unexplained and self._link.problem) or why))

    def keep_alive(self, now_s: float) -> None:
        """Once a second or so: pings, and whether the connection has become a good one."""
        if self._mqtt.socket is not None:
            self._mqtt.keep_alive()
        self._link.on_alive(now_s)

    def on_send_failed(self, why: str) -> None:
        """Pulsar did not take a message; it is sent again."""
        self.last_error = why

    def _connect_mqtt(self) -> None:
        # Before CONNECT: a new session begins with the ids of the former one.
        self._before_connect()
        try:
            self._mqtt.connect()
        except BrokerUnreachable as error:
            self._log_error(error)
            self._link.on_ended(str(error), self._clock())
        else:
            self._link.on_attempt(self._clock())

    def _log_error(self, error: GatewayError) -> None:
        self.last_error = str(error)
        _LOG.warning("not connected", error=self.last_error)
