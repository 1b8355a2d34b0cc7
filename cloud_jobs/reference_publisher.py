"""Versions of reference data, published to their topics: each publication gets its id here. Starts no Spark."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pulsar

from cloud_jobs.errors import ReferenceNotPublished
from cloud_jobs.reference_files import ReferenceVersion
from geo.reference.messages import NAMESPACE, TOPICS
from waybill.daemon.process import close_within
from waybill.identity.publication_id import (
    PROPERTY,
    RANDOM_BITS,
    is_far_ahead,
    is_publication_id,
    next_publication_id,
)
from waybill.identity.signatures import OperatorKey, Publication, sign_publication
from waybill.identity.tokens import InvalidToken, read_claims
from waybill.pulsar import cluster_clock
from waybill.pulsar.pulsar_client import (
    PulsarAccess,
    PulsarAccessError,
    PulsarToken,
    TokenNotGood,
    close_quietly,
    open_pulsar_client,
)

_TIMEOUT_S = 10
_RIGHT_NEEDED = (
    "take the token of a role that may: one with the grant `produce` there in the topology, as `publisher` has in the "
    "local stack (access/tokens/publisher.token); `token_file` under [access] names it"
)
_NEW_TOKEN = {"way_out": "write a new token of a role that may publish (waybill pki token ROLE)"}
_ANYBODY = PulsarAccess()
_Publication = tuple[ReferenceVersion, str]


class Signing(NamedTuple):
    """As whom something is published, and why."""

    key: OperatorKey
    reason: str


def check_clock(admin_urls: Sequence[str], access: PulsarAccess) -> None:
    """Compares this machine's clock with that of the first cluster that answers. Raises ReferenceNotPublished.

    The ids of publications are their order, and a clock that is ahead puts its own behind every correction.
    """
    reasons, way_out = list[str](), dict[str, str]()
    _check_token(access)
    for url in admin_urls:
        try:
            return cluster_clock.check_clock(url, access)
        except cluster_clock.ClockUnknown as unknown:
            reasons.append(str(unknown))
            if isinstance(unknown, cluster_clock.NotLetIn):
                way_out = _NEW_TOKEN
        except cluster_clock.ClockDiffers as differs:
            raise ReferenceNotPublished([str(differs)]) from differs
    raise ReferenceNotPublished(reasons, **way_out)


def _check_token(access: PulsarAccess) -> None:
    """Raises ReferenceNotPublished for a token that no cluster takes: they would be asked until time is over."""
    try:
        access.check_token(time.time())
    except TokenNotGood as error:
        raise ReferenceNotPublished([str(error)], **_NEW_TOKEN) from error


def publish(
    service_urls: Sequence[str],
    versions: Iterable[ReferenceVersion],
    access: PulsarAccess = _ANYBODY,
    *,
    signing: Signing | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Publishes versions to the topics of the first cluster that takes them, and returns their number.

    `signing`: as whom, and why; a centre takes what is published without only if it takes everything.

    All are persisted then. They come, in their order, after every publication that stands last in a topic of that
    cluster, whatever `clock` (seconds since 1970) says. A cluster that is tried after another gets the same ids: what
    arrived in both counts once. What was published by a clock more than five minutes ahead is no publication to
    come after; a clock that is itself so far behind most publications publishes nothing. Raises ReferenceNotPublished.
    """
    _check_token(access)
    todo, reasons, now_ms = list(versions), list[str](), round(clock() * 1000)
    publications: list[_Publication] = []
    way_out: dict[str, str] = {}
    for url in service_urls:
        try:
            client = open_pulsar_client(url, access, timeout_s=_TIMEOUT_S)
            try:
                publications = publications or _with_ids(todo, _newest_id(client, now_ms), now_ms)
                return _send(client, publications, signing)
            finally:
                close_within([partial(close_quietly, client)])
        except pulsar.AuthorizationError:
            way_out = {"way_out": _RIGHT_NEEDED}
            reasons.append(f"{url}: the role {_role(access)} may not publish on {NAMESPACE}")
        except (PulsarAccessError, pulsar.PulsarException, ValueError, RuntimeError) as error:
            reasons.append(f"{url}: {error}")
    raise ReferenceNotPublished(reasons, **way_out)


def _role(access: PulsarAccess) -> str:
    """Whom the token of an access names; "" where it has none that says so."""
    try:
        token = PulsarToken(access)
        return repr(read_claims(token()).role) if token else "of nobody, for want of a token,"
    except (PulsarAccessError, InvalidToken):
        return "of this token"


def _with_ids(versions: Iterable[ReferenceVersion], newest: str | None, now_ms: int) -> list[_Publication]:
    publications: list[_Publication] = []
    for version in versions:
        newest = next_publication_id(newest, now_ms, secrets.randbits(RANDOM_BITS))
        publications.append((version, newest))
    return publications


def _newest_id(client: pulsar.Client, now_ms: int) -> str | None:
    """The highest of the ids that are not far ahead. Raises ValueError if most are: then this clock is wrong."""
    newest = _last_id(client)
    if newest is None or not is_far_ahead(newest, now_ms):
        return newest
    every = [one for topic in TOPICS.values() for one in _ids(client, topic, pulsar.MessageId.earliest) if one]
    near = [one for one in every if not is_far_ahead(one, now_ms)]
    if len(near) * 2 < len(every):
        raise ValueError(f"this machine's clock is minutes behind {len(every) - len(near)} of {len(every)} ids")
    return max(near, default=None)


def _last_id(client: pulsar.Client) -> str | None:
    """The highest of the ids that stand last in the topics; of a topic that ends with what has no id, the highest."""
    found = list[str]()
    for topic in TOPICS.values():
        last = list(_ids(client, topic, pulsar.MessageId.latest))
        found += filter(None, _ids(client, topic, pulsar.MessageId.earliest) if None in last else last)
    return max(found, default=None)


def _ids(client: pulsar.Client, topic: str, start: pulsar.MessageId) -> Iterator[str | None]:
    """The ids of the messages of a topic, from `start` on; None of a message without one."""
    reader = client.create_reader(
        f"{NAMESPACE}/{topic}",
        start,
        # of what was compacted the topic itself may hold nothing any more
        is_read_compacted=True,
        start_message_id_inclusive=True,
    )
    try:
        while reader.has_message_available():
            yield _id_of(reader.read_next(_TIMEOUT_S * 1000))
    finally:
        reader.close()


def _id_of(message: pulsar.Message) -> str | None:
    try:
        text = message.properties().get(PROPERTY)
    except UnicodeDecodeError:
        return None
    if text is None or not is_publication_id(text) or is_far_ahead(text, message.publish_timestamp()):
        return None
    return str(text)


def _send(client: pulsar.Client, publications: Iterable[_Publication], signing: Signing | None) -> int:
    producers = {kind: client.create_producer(f"{NAMESPACE}/{topic}") for kind, topic in TOPICS.items()}
    count = 0
    for version, publication_id in publications:
        body, properties = version.body.encode(), {PROPERTY: publication_id}
        # with its id, which is drawn only when it is known after which others it comes
        if signing is not None:
            published = Publication(version.kind, version.key, body)
            properties = sign_publication(signing.key, published, publication_id, signing.reason)
        producers[version.kind].send(body, properties=properties, partition_key=version.key)
        count += 1
    return count
