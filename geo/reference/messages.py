"""The messages on the topics of reference data: publications, and messages that are none. Knows no Spark.

The key of a publication is its id and the moment from which it is in force, so compaction keeps every version. Both
also stand in its body. A message whose key differs is refused: compaction would go by the key, and all else by the
body.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from geo.reference.moments import instant_text
from geo.spatial.ids import named
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.operator_keys import OperatorKeys, Scope
from waybill.identity.signatures import (
    ID_PROPERTY,
    REASON,
    SIGNATURE,
    SIGNER,
    Publication,
    is_far_ahead,
    is_publication_id,
    verify_publication,
)
from waybill.record import InvalidJson, parse_json

# Rights to publish reference data.

_MAX_SHOWN_REASON: Final = 500


class Provenance(NamedTuple):
    """Who published something and why: columns of REFERENCE. Without a signature these are unverified."""

    signer: str | None
    published_by: str | None
    reason: str | None
    signature: str | None


@dataclass(frozen=True, slots=True)
class ReferenceTrust:
    """The keys that the centre trusts; None accepts everything, and must be configured explicitly."""

    keys: OperatorKeys | None

    def judged(self, publication: Publication, body: Mapping[str, Any], properties: Mapping[str, str]) -> Provenance:
        """Who published this. Raises SignatureRefused if it is unsigned, altered, or not theirs to publish."""
        if self.keys is None:
            reason = properties.get(REASON)
            return Provenance(None, None, reason and reason[:_MAX_SHOWN_REASON], None)
        scope = scope_of(publication.kind, body)
        found = verify_publication(self.keys, publication, properties, scope)
        return Provenance(found.signer, found.name, found.reason, properties[SIGNATURE])

    def signature_state(self, publication: Publication, body: Mapping[str, Any], properties: Mapping[str, str]) -> str:
        """The state of a signature now: `signed`, `not checked` without keys, or the word for its fault."""
        if not properties.get(SIGNER):
            return SignatureFault.UNSIGNED
        if self.keys is None:
            return "not checked"
        try:
            self.judged(publication, body, properties)
        except SignatureRefused as refused:
            return refused.fault
        return "signed"


ANYBODY: Final = ReferenceTrust(None)
"""Accepts unsigned publications."""


def scope_of(kind: str, body: Mapping[str, Any]) -> Scope:
    """What a publication speaks for: an account for its tenants, itself and its parent; an alert rule for its account.

    Anything else concerns every tenant: a fence counts for all vehicles, and a tariff for every account that refers to
    it.
    """
    if kind == "alert_rule":
        name = body.get("id")
        # the id names the account
        return Scope(kind, accounts=frozenset({name.partition("/")[0] if isinstance(name, str) else ""}))
    devices = body.get("devices", [])
    if kind != "account" or not isinstance(devices, list):
        return Scope(kind, is_shared=True)
    # not a set yet: senders may put lists here, which have no hash
    tenants = [one.get("tenant") if isinstance(one, dict) else None for one in devices]
    accounts = [body.get("id"), *([] if body.get("parent") is None else [body["parent"]])]
    if not all(isinstance(name, str) for name in (*tenants, *accounts)):
        return Scope(kind, is_shared=True)
    return Scope(kind, frozenset(map(str, tenants)), frozenset(map(str, accounts)))


Kind = Literal["fence", "tariff", "account", "calendar", "legal_entity", "exchange_rate", "alert_rule"]
TOPICS: Final[dict[Kind, str]] = {
    "fence": "fences",
    "tariff": "tariffs",
    "account": "accounts",
    "calendar": "calendars",
    "legal_entity": "legal-entities",
    "exchange_rate": "exchange-rates",
    "alert_rule": "alert-rules",
}
NAMESPACE: Final = "persistent://fleet/reference"
# Pulsar's own bound of a message
MAX_BYTES: Final = 5 << 20
# a message of five million bytes could hold millions of empty lists
MAX_VALUES: Final = 500_000
_SHOWN_CHARS: Final = 60

_NOTHING: Final[dict[str, str]] = {}
_HELD: Final = Provenance(None, None, None, None)
"""For publications that the table already has, which are not stored again."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """A message that is no publication: where it stands, its key, and the reason."""

    topic: str
    message_id: str
    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.topic} {self.message_id}, key {_shown(self.key)}: {self.reason}"


class ReadMessages(NamedTuple):
    """Rows of REFERENCE and of REFERENCE_QUARANTINE, both without the time at which the centre takes them."""

    publications: list[Row]
    quarantined: list[Row]


def stated_version(kind: Kind, body: dict[str, Any]) -> tuple[str, str]:
    """The id and the beginning in a body, as they stand in a key; "" if absent."""
    facts = body.get("properties") if kind == "fence" else body
    name = named(body) if kind == "fence" else body.get("id")
    begin = facts.get("effective_from") if isinstance(facts, dict) else None
    return "" if name is None else str(name), "" if begin is None else str(begin)


def read_messages(
    kind: Kind, messages: Iterable[dict[str, Any]], trust: ReferenceTrust, held: Mapping[str, str] = _NOTHING
) -> ReadMessages:
    """The publications and faults among the messages of a kind's topic; a fault stops no other message.

    A message is a publication only if `trust` accepts its signer. `held`: digests of accepted publications by id; those
    are not verified again.

    A message has the columns `key`, `value`, `properties` (pairs), `publish_time`, `message_id` and `malformed`. Of
    publications with one id the first counts; another one with other content is quarantined.
    """
    read = ReadMessages([], [])
    digests: dict[str, str] = {}
    for message in messages:
        try:
            row = _publication(kind, message, trust, held)
            check_content(row, digests.setdefault(row["publication_id"], row["digest"]))
        except (InvalidJson, ValueError, SignatureRefused) as fault:
            read.quarantined.append(_quarantined(kind, message, str(fault)))
        else:
            read.publications.append(row)
    return read


def check_content(row: Row, known_digest: str) -> None:
    """Raises ValueError for a publication whose id is known with another content."""
    if row["digest"] != known_digest:
        raise ValueError(f"its publication id {row['publication_id']} belongs to other content")


def quarantined_publication(row: Row, reason: str) -> Row:
    """The row of the quarantine for a row of REFERENCE that cannot be taken."""
    topic, _, message_id = row["place"].rpartition(" ")
    facts = {"topic": topic, "publication_id": row["publication_id"], "payload": row["body"].encode()}
    fingerprint = _digest(topic.encode(), facts["publication_id"].encode(), facts["payload"])
    more = {"message_id": message_id, "key": row["id"], "published_at": row["published_at"]}
    return facts | more | {"fingerprint": fingerprint, "reason": reason}


def named_message(row: Row) -> QuarantinedMessage:
    return QuarantinedMessage(row["topic"], row["message_id"] or "", row["key"] or "", row["reason"])


def _publication(kind: Kind, message: dict[str, Any], trust: ReferenceTrust, held: Mapping[str, str]) -> Row:
    if message["malformed"] is not None:
        raise ValueError(message["malformed"])
    if message["key"] is None or message["value"] is None:
        raise ValueError("a version needs a key and a value")
    publication_id = _property(message, ID_PROPERTY)
    if publication_id is None or not is_publication_id(publication_id):
        found = "none" if publication_id is None else _shown(publication_id)
        raise ValueError(f"its property {ID_PROPERTY} must be a UUID of version 7, and is {found}")
    if is_far_ahead(publication_id, message["publish_time"].timestamp() * 1000):
        raise ValueError(
            f"its publication id {publication_id} is of a time more than five minutes after it was published"
        )
    body = parse_json(message["value"], max_bytes=MAX_BYTES, max_values=MAX_VALUES)
    if not isinstance(body, dict):
        raise ValueError("a version must be a JSON object")
    name, begin = stated_version(kind, body)
    key_begin = message["key"].removeprefix(f"{name}@")
    if not name or key_begin == message["key"] or instant_text(key_begin) != instant_text(begin):
        raise ValueError(f"its key {_shown(message['key'])} does not match its content, {_shown(f'{name}@{begin}')}")
    digest = _digest(kind.encode(), message["value"])
    # verifying takes 0.1 ms, and each run reads a hundred thousand messages
    if held.get(publication_id) == digest:
        provenance = _HELD
    else:
        publication = Publication(kind, message["key"], message["value"])
        provenance = trust.judged(publication, body, dict(message["properties"]))
    return {
        "publication_id": publication_id,
        "kind": kind,
        "id": name,
        "body": message["value"].decode(),
        "digest": digest,
        **provenance._asdict(),
        "published_at": message["publish_time"],
        "place": f"{_topic(kind)} {message['message_id']}",
    }


def _quarantined(kind: Kind, message: dict[str, Any], reason: str) -> Row:
    key, value, published_at = message["key"], message["value"], message["publish_time"]
    publication_id = _property(message, ID_PROPERTY)
    # without its place: the same message has another place in another cluster
    signed = [_property(message, name) for name in (SIGNER, SIGNATURE)]
    parts = (_topic(kind), key, publication_id, published_at and published_at.isoformat(), *signed)
    fingerprint = _digest(*(repr(part).encode() for part in parts), value or b"")
    return {
        "fingerprint": fingerprint,
        "topic": _topic(kind),
        "message_id": message["message_id"],
        "key": key,
        "publication_id": publication_id,
        "reason": reason,
        "published_at": published_at,
        "payload": None if value is None else value[:MAX_BYTES],
    }


def _topic(kind: Kind) -> str:
    return f"{NAMESPACE}/{TOPICS[kind]}"


def _property(message: dict[str, Any], name: str) -> str | None:
    return dict(message["properties"] or ()).get(name)


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
