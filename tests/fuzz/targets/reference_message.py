"""Messages of the topics of reference data: from the topic into what is in force.

The first byte chooses the kind; then come the key, a line end, and the value. Its publication id is right: whoever may
publish makes one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cloud_jobs.billing.contracts import contracts_of_toml
from cloud_jobs.derived.fences import changes_between
from cloud_jobs.reference.files import usable
from cloud_jobs.reference.tables import in_force, parse_fences
from geo.reference.in_force import published_fences
from geo.reference.messages import ANYBODY, TOPICS, Kind, read_messages, stated_version
from tests.cloud_jobs.billing.contracts.test_toml_text import EXAMPLE
from tests.cloud_jobs.publications import message_of
from tests.fuzz.targets.fences_geojson import FEATURES

KINDS: tuple[Kind, ...] = tuple(TOPICS)
MAX_REASON_CHARACTERS = 20_000


def publication(kind: Kind, body: Any) -> bytes:
    """The input that stands for a publication."""
    name, begin = stated_version(kind, body)
    return bytes([KINDS.index(kind)]) + f"{name}@{begin}\n{json.dumps(body)}".encode()


def seeds() -> Iterable[bytes]:
    """One of each kind, and texts that are deep, large, or of wrong types."""
    for feature in FEATURES:
        yield publication("fence", feature)
    found, faults = contracts_of_toml(EXAMPLE)
    assert not faults
    for one in found:
        kind: Any = one.kind
        yield publication(kind, one.made.model_dump(mode="json", exclude_defaults=True))
    yield publication("fence", FEATURES[0] | {"x": json.loads("[" * 14 + "]" * 14)})
    yield b"\x00a@\n" + b'{"id":"a","properties":{"effective_from":[1]},"geometry":' + b"[" * 15 + b"]" * 15 + b"}"
    yield b"\x01t@2026-01-01\n" + b'{"id":"t","effective_from":"2026-01-01","prices":[' + b"{}," * 9000 + b"{}]}"
    yield b"\x02a@\n" + b'{"id":"a","devices":[' + b'{"device":"\\u0000"},' * 1000 + b"1e308]}"
    yield b"\x04usd-eur@0001-01-01T00:00+23:59\n" + b'{"id":"usd-eur","effective_from":"0001-01-01T00:00+23:59"}'


def judge(data: bytes) -> None:
    """A publication or a quarantined message; and a publication is in force, or refused with a reason."""
    if not data:
        return
    kind = KINDS[data[0] % len(KINDS)]
    key, _, value = data[1:].partition(b"\n")
    read = read_messages(
        kind, [message_of(kind, None) | {"key": key.decode("utf-8", "replace"), "value": value}], ANYBODY
    )
    assert len(read.publications) + len(read.quarantined) == 1
    found = in_force(read.publications, usable)
    assert len(found.held) + len(found.refused) == len(read.publications)
    assert all(len(str(one)) < MAX_REASON_CHARACTERS for one in found.refused)
    if kind == "fence":
        features = published_fences(read.publications).features
        assert len(features) == len(found.held)
        parse_fences(features)
        changes_between((), features, 0)


def bounded(data: bytes) -> None:
    """What every collector does; what a shape takes is bounded by its corners."""
    if data:
        kind = KINDS[data[0] % len(KINDS)]
        key, _, value = data[1:].partition(b"\n")
        read_messages(kind, [message_of(kind, None) | {"key": key.decode("utf-8", "replace"), "value": value}], ANYBODY)
