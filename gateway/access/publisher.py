"""What an access daemon publishes: its revocation list for the other regions, and what it has confirmed.

A thread of its own: a cluster that is away keeps nobody waiting whose session is to end. Of lists only the newest
waits, of confirmations a bounded number; those that find no room are counted.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from gateway.access.access_key import AccessKey
from gateway.access.core import Confirmation
from gateway.access.displaced import Displaced
from gateway.access.refused_entries import RefusedEntries
from gateway.access.revocation import LISTS_TOPIC, MAX_LIST_BYTES, RevocationList
from gateway.registry_settings import RegistrySettings
from identity.confirmations import CONFIRMATIONS_TOPIC, encode_confirmation
from identity.publication_id import is_publication_id
from identity.registry_messages import DEVICES_TOPIC
from runtime.backoff import Backoff
from runtime.compacted_topic import TopicMessage
from runtime.pulsar_client import PulsarAccessError, open_pulsar_client

__all__ = ["AccessPublisher"]

MAX_WAITING: Final = 1000
AGAIN_AT_ONCE: Final = 100
"""Displaced entries between two looks at lists and confirmations."""
LOOK_S: Final = 1.0
"""How often it is looked whether something is to be published again."""
REFUSED_AGE_S: Final = 60.0
"""Of what was published longer ago nobody waits to hear that it is refused."""
_OPERATION_S: Final = 5
_CLOSE_S: Final = 3.0
_LOG = structlog.get_logger("access")


class AccessPublisher:
    """Publishes in the background, again and again until the cluster has it."""

    def __init__(
        self,
        settings: RegistrySettings,
        region: str,
        key: AccessKey,
        displaced: Displaced | None = None,
        held: Callable[[str], TopicMessage | None] = lambda _: None,
    ) -> None:
        """`displaced`: devices to be published again; `held`: the message that holds of one."""
        self._displaced, self._held = displaced, held
        self._settings, self._region, self._key = settings, region, key
        self._list: RevocationList | None = None
        self._confirmations: deque[tuple[bytes, Mapping[str, str]]] = deque()
        self._refused = RefusedEntries()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._backoff = Backoff(0.1, 5.0, random.random)
        self._thread = threading.Thread(target=self._run, name="publishes access", daemon=True)
        self._not_confirmed = 0
        self._not_sent = self._too_large = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; what was not published is published after the next start."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def publish_list(self, newest: RevocationList) -> None:
        """The region's own list, instead of an older one that still waits. One that is too large stays here."""
        size, is_too_large = len(newest.message), len(newest.message) > MAX_LIST_BYTES
        said = (
            f"the revocation list of {len(newest.serials)} certificates has {size} bytes, and {MAX_LIST_BYTES} are sent"
        )
        self._too_large = f"{said} at most: other regions have none or an older one" if is_too_large else ""
        self._list = None if is_too_large else newest
        self._wake.set()

    @property
    def problem(self) -> str:
        """What is not published, and why; "" if nothing is wrong."""
        return "; ".join(filter(None, (self._not_sent, self._too_large)))

    @property
    def dropped(self) -> int:
        """Confirmations and refusals for which there was no room."""
        return self._not_confirmed + self._refused.dropped

    def confirm(self, confirmed: Sequence[Confirmation], at_s: float) -> None:
        """These publications are in force at this region's broker."""
        if len(self._confirmations) >= MAX_WAITING:
            self._not_confirmed += 1
            return
        self._say(encode_confirmation(self._region, confirmed, at_s), at_s)

    def _say(self, body: bytes, at_s: float) -> None:
        self._confirmations.append((body, self._key.sign_confirmation(body, int(at_s * 1000))))
        self._wake.set()

    def refuse(self, publication_id: str, reason: str, published_s: float) -> None:
        """A publication of the registry does not count in this region: whoever made it hears of it, if it is new."""
        is_new = abs(time.time() - published_s) < REFUSED_AGE_S
        if is_new and is_publication_id(publication_id):
            self._refused.add(publication_id, reason)
            self._wake.set()

    def _run(self) -> None:
        import pulsar  # noqa: PLC0415 - imported where it is used, as everywhere

        while not self._stop.is_set():
            try:
                self._serve()
            except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                self._not_sent = f"nothing is published: {error}"
                _LOG.warning("publication failed", problem=self._not_sent)
                self._stop.wait(self._backoff.take_delay_s())

    def _serve(self) -> None:
        import pulsar  # noqa: PLC0415

        client = open_pulsar_client(self._settings.service_url, self._settings.access, timeout_s=_OPERATION_S)
        try:
            lists, confirmations = (client.create_producer(topic) for topic in (LISTS_TOPIC, CONFIRMATIONS_TOPIC))
            self._not_sent = ""
            while not self._stop.is_set():
                self._send(lists, confirmations)
                self._send_again(client)
                self._backoff.reset()
                self._wake.wait(LOOK_S)
                self._wake.clear()
        finally:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()

    def _send(self, lists: Any, confirmations: Any) -> None:
        # All at once: a flood of strangers' messages makes one of ours.
        if self._refused and len(self._confirmations) < MAX_WAITING:
            refused = self._refused.take().items()
            self._say(encode_confirmation(self._region, (), time.time(), refused), time.time())
        while self._confirmations:
            body, properties = self._confirmations[0]
            confirmations.send(body, partition_key=self._region, properties=dict(properties))
            # Only now: what the cluster did not take is sent again.
            self._confirmations.popleft()
        if (newest := self._list) is not None:
            lists.send(newest.message, partition_key=newest.issuer)
            # A newer one may have come meanwhile.
            if self._list is newest:
                self._list = None

    def _send_again(self, client: Any) -> None:
        names = [] if self._displaced is None else self._displaced.take_due(AGAIN_AT_ONCE)
        if self._displaced is None or not names:
            return
        # The rest after what is newer: nobody's revocation waits for a flood.
        if len(names) == AGAIN_AT_ONCE:
            self._wake.set()
        try:
            producer = client.create_producer(DEVICES_TOPIC)
            while names:
                # As it holds now: it may have changed while it waited.
                if (message := self._held(names[0])) is not None:
                    producer.send(message.body, partition_key=names[0], properties=dict(message.properties))
                names.pop(0)
            producer.close()
        except BaseException:
            self._displaced.put_back(names)
            raise
