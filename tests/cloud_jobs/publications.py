"""Publications of reference data, as messages of their topics and as rows of the table."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.tables import store
from geo.reference.messages import ANYBODY, Kind, read_messages, stated_version
from waybill.identity.signatures import ID_PROPERTY, next_publication_id

AT = datetime(2026, 1, 5, tzinfo=UTC)


def publication_id(number: int) -> str:
    """The id of the publication of that number: a higher number is a later publication."""
    return next_publication_id(None, number, 0)


def message_of(kind: Kind, body: Any, number: int = 0, **more: Any) -> dict[str, Any]:
    """A message as the source gives it, published in the minute of its number."""
    text = body if isinstance(body, str) else json.dumps(body)
    name, begin = stated_version(kind, body) if isinstance(body, dict) else ("", "")
    message = {
        "key": f"{name}@{begin}",
        "value": text.encode(),
        "malformed": None,
        "properties": [(ID_PROPERTY, publication_id(number))],
        "publish_time": AT + timedelta(minutes=number),
        "message_id": f"3:{number}:-1",
    }
    return message | more


def tariff(price: str, number: int, **more: Any) -> dict[str, Any]:
    prices = [{"meter": "distance", "unit": "km", "unit_amount": price}]
    body = {"id": "t", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "prices": prices}
    return message_of("tariff", body, number, **more)


def collect_in_parts(folder: Path, seed: int) -> int:
    """One collector that reads a topic as it grows, 12 publications and 6 other messages; how many it added."""
    dice = random.Random(seed)
    messages = [tariff(str(at), at) for at in range(12)]
    bad = [tariff("9", 20 + at, key="u@") for at in range(6)]
    added = 0
    for count in (1, 2, 3, 6, 9, 12):
        part = dice.sample(messages[:count], count) + dice.sample(bad, min(count, 6))
        added += store(Lake(folder), {"tariff": part}, ANYBODY).added
    return added


def row_of(kind: Kind, id_: str, body: Any, number: int = 0, **more: Any) -> dict[str, Any]:
    """A row of the table, whatever its body is, collected in the minute of its number, and by that commit."""
    text = body if isinstance(body, str) else json.dumps(body)
    at = AT + timedelta(minutes=number)
    row = {
        "publication_id": publication_id(number),
        "kind": kind,
        "id": id_,
        "body": text,
        "digest": f"{number}",
        "published_at": at,
        "collected_at": at,
        "place": f"topic 3:{number}:-1",
        "commit_number": number + 1,
    }
    return row | more


def rows_of(kind: Kind, bodies: Sequence[dict[str, Any]], first: int = 0) -> list[dict[str, Any]]:
    read = read_messages(kind, [message_of(kind, body, first + at) for at, body in enumerate(bodies)], ANYBODY)
    assert read.quarantined == []
    return [row | {"collected_at": row["published_at"], "commit_number": first + 1} for row in read.publications]
