"""One signed attempt at a webhook."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from importlib.metadata import version

from gateway.webhooks.config import WebhookSettings
from gateway.webhooks.delivery import WebhookDelivery
from gateway.webhooks.http_outcome import HttpOutcome
from gateway.webhooks.http_post import post
from gateway.webhooks.secret_file import SecretFile
from gateway.webhooks.signature import signature_header

__all__ = ["SignedPost"]


class SignedPost:
    """Called with a delivery, it makes one attempt. `secret` is the file that signs."""

    def __init__(self, settings: WebhookSettings, clock: Callable[[], float] = time.time) -> None:
        """Raises SecretUnusable; OSError for authorities that cannot be read."""
        self._settings, self._clock = settings, clock
        self.secret = SecretFile(settings.secret_file)
        self._context = context_of(settings)
        self._agent = f"Waybill/{version('fleet-waybill')}"

    def __call__(self, delivery: WebhookDelivery) -> HttpOutcome:
        """What became of it. The time is that of this attempt, so whoever checks may refuse what is old."""
        timestamp_s = int(self._clock())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": self._agent,
            # the same word twice: by the IETF's draft, and by Standard Webhooks
            "Idempotency-Key": delivery.key,
            "webhook-id": delivery.key,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature_header(self.secret(), delivery.key, timestamp_s, delivery.body),
        }
        one = self._settings
        return post(one.url, headers, delivery.body, one.times, self._context, networks=one.networks)


def context_of(settings: WebhookSettings) -> ssl.SSLContext | None:
    """How the server's certificate is checked; None for plain http. Raises OSError (which ssl.SSLError is)."""
    if not settings.url.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=None if settings.ca is None else str(settings.ca))
    # Said here, because what Python allows by default is its builder's choice.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
