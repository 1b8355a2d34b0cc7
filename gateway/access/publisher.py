"""Publishes the region's revocation list, confirmations, and displaced registry entries, in its own thread.

Only the newest list waits, and a bounded number of confirmations. A kind that fails backs off alone. The displaced
entries of each tenant are a kind of their own.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from gateway.access.access_key import AccessKey
from gateway.access.core import Confirmation
from gateway.access.registry_cache import CacheUnavailable, RegistryCache
from gateway.access.revocation import LISTS_TOPIC, MAX_LIST_BYTES, RevocationList
from gateway.config import RegistrySettings
from waybill.daemon.backoff import Backoff
from waybill.identity.confirmations import CONFIRMATIONS_TOPIC, encode_confirmation
from waybill.identity.registry_messages import devices_topic
from waybill.identity.signatures import is_publication_id
from waybill.pulsar.pulsar_client import (
    AccessRefusal,
    PulsarAccessError,
    access_refusal,
    connected_producer,
    open_pulsar_client,
)

MAX_WAITING: Final = 1000
AGAIN_AT_ONCE: Final = 100
"""Displaced entries that are sent before lists and confirmations are sent again."""
LOOK_S: Final = 1.0
"""How often to look for entries that must be published again."""
REFUSED_AGE_S: Final = 60.0
"""Refusals of older publications are not reported."""
_OPERATION_S: Final = 5
_CLOSE_S: Final = 3.0
_LOG = structlog.get_logger("access")


Producer = Callable[[], Any]
"""Returns the producer of a kind's topic, which is opened when first needed."""


class _Kind:
    """Publications of one kind, with their own backoff."""

    def __init__(self, what: str, topic: str, send: Callable[[Producer], None]) -> None:
        self._what, self._send = what, send
        self._backoff = Backoff(0.1, 5.0, random.random)
        self._client: Any = None
        self._producer: Any = None
        self._retry_at_s = 0.0
        self.topic, self.held, self.problem = topic, 0, ""

    @property
    def wait_s(self) -> float:
        return max(self._retry_at_s - time.monotonic(), 0.0)

    def begin(self, client: Any) -> None:
        self._client, self._producer = client, None

    def has_failed(self) -> bool:
        """Send what is there, unless it backs off; whether that failed in a way that a new client may solve."""
        import pulsar  # noqa: PLC0415

        if self.wait_s:
            return False
        try:
            self._send(self._open)
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            is_held = access_refusal(error) is AccessRefusal.HELD
            self.held += is_held
            why = f"another producer has {self.topic} for itself alone" if is_held else error
            self.problem = f"{self._what} are not published: {why}"
            self._retry_at_s = time.monotonic() + self._backoff.take_delay_s()
            _LOG.warning("publication failed", problem=self.problem)
            return not is_held
        self.problem = ""
        self._backoff.reset()
        return False

    def _open(self) -> Any:
        self._producer = connected_producer(self._client, self.topic, self._producer, _OPERATION_S)
        return self._producer


class AccessPublisher:
    def __init__(
        self,
        settings: RegistrySettings,
        region: str,
        key: AccessKey,
        cache: RegistryCache | None = None,
    ) -> None:
        self._cache = cache
        self._settings, self._region, self._key = settings, region, key
        self._list: RevocationList | None = None
        self._confirmations: deque[tuple[bytes, Mapping[str, str]]] = deque()
        self._refused: dict[str, str] = {}
        self._refused_lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="publishes access", daemon=True)
        self.list_bytes = 0
        self._no_client = self._large = ""
        self._kinds = (
            _Kind("confirmations", CONFIRMATIONS_TOPIC, self._send_confirmations),
            _Kind("revocation lists", LISTS_TOPIC, self._send_list),
            *(
                _Kind(f"displaced entries of {tenant}", devices_topic(tenant), partial(self._send_again, tenant))
                for tenant in settings.tenants
            ),
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop; the rest is published after the next start."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def topics_held(self) -> Counter[str]:
        """How often another producer had a topic exclusively, by topic."""
        return Counter({kind.topic: kind.held for kind in self._kinds if kind.held})

    def publish_list(self, newest: RevocationList) -> None:
        """Publish the region's own list, instead of an older one that still waits. One that is too large is not
        sent.
        """
        self.list_bytes = size = len(newest.message)
        self._list, self._large = newest, ""
        if size > MAX_LIST_BYTES:
            self._list = None
            self._large = (
                f"the revocation list of {len(newest.serials)} certificates has {size} bytes, and other regions accept"
                f" at most {MAX_LIST_BYTES}: they keep an older one, and after its end refuse this region's devices"
            )
        self._wake.set()

    @property
    def problem(self) -> str:
        """What is not published, and why; "" if nothing is wrong."""
        return "; ".join(filter(None, (self._no_client, *(kind.problem for kind in self._kinds), self._large)))

    def confirm(self, confirmed: Sequence[Confirmation], at_s: float) -> None:
        """Confirm that these publications are in force at this region's broker."""
        if len(self._confirmations) < MAX_WAITING:
            self._say(encode_confirmation(self._region, confirmed, at_s), at_s)

    def _say(self, body: bytes, at_s: float) -> None:
        self._confirmations.append((body, self._key.sign_confirmation(body, int(at_s * 1000))))
        self._wake.set()

    def refuse(self, publication_id: str, reason: str, published_s: float) -> None:
        """Report that this region refused a recent registry publication, so that its operator hears of it."""
        is_new = abs(time.time() - published_s) < REFUSED_AGE_S
        if not is_new or not is_publication_id(publication_id):
            return
        with self._refused_lock:
            # Bounded, because any writer on the topic could name many ids.
            if len(self._refused) < MAX_WAITING or publication_id in self._refused:
                self._refused[publication_id] = reason
        self._wake.set()

    def _run(self) -> None:
        import pulsar  # noqa: PLC0415 - imported where it is used, as everywhere

        backoff = Backoff(0.1, 5.0, random.random)
        while not self._stop.is_set():
            try:
                client = open_pulsar_client(self._settings.service_url, self._settings.access, timeout_s=_OPERATION_S)
            except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                self._no_client = f"nothing is published: {error}"
                _LOG.warning("publication failed", problem=self._no_client)
                self._stop.wait(backoff.take_delay_s())
                continue
            self._no_client = ""
            backoff.reset()
            try:
                self._serve(client)
            finally:
                with contextlib.suppress(pulsar.PulsarException):
                    client.close()

    def _serve(self, client: Any) -> None:
        """Publish until something fails that a new client, with a newer token, may solve."""
        for kind in self._kinds:
            kind.begin(client)
        while not self._stop.is_set():
            self._wake.clear()
            failed = [kind.has_failed() for kind in self._kinds]
            if any(failed):
                return
            self._wake.wait(min([LOOK_S, *(kind.wait_s for kind in self._kinds if kind.problem)]))

    def _send_confirmations(self, producer: Producer) -> None:
        # All in one message, so that a flood of bad messages makes one of ours.
        if self._refused and len(self._confirmations) < MAX_WAITING:
            with self._refused_lock:
                refused, self._refused = self._refused, {}
            self._say(encode_confirmation(self._region, (), time.time(), refused.items()), time.time())
        while self._confirmations:
            body, properties = self._confirmations[0]
            producer().send(body, partition_key=self._region, properties=dict(properties))
            # Removed after sending, so that a failed one is repeated.
            self._confirmations.popleft()

    def _send_list(self, producer: Producer) -> None:
        if (newest := self._list) is not None:
            producer().send(newest.message, partition_key=newest.issuer)
            # A newer list may have come meanwhile.
            if self._list is newest:
                self._list = None

    def _send_again(self, tenant: str, producer: Producer) -> None:
        if self._cache is None:
            return
        names = self._cache.take_due(tenant, AGAIN_AT_ONCE)
        # The rest comes after lists and confirmations, which must not wait for a flood.
        if len(names) == AGAIN_AT_ONCE:
            self._wake.set()
        try:
            while names:
                # Read now, because the entry may have changed while it waited.
                message = self._cache.message(names[0])
                if message is not None:
                    producer().send(message.body, partition_key=names[0], properties=dict(message.properties))
                names.pop(0)
        except CacheUnavailable as error:
            _LOG.warning("an entry is not published again", device=names[0], problem=str(error))
        finally:
            self._cache.put_back(names)
