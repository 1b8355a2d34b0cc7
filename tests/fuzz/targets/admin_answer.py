"""What an admin address answers: of each shape that is asked for, and for a stored entry.

The first byte chooses what was asked, the second the status; then come headers, an empty line and the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cloud_jobs.pulsar_source.entries import StoredEntry
from geo.replication import rest_types
from geo.replication.admin import RestAnswer
from geo.replication.errors import AdminRefused, ClusterUnreachable
from tests.fuzz.bounds import check_refusal

SHAPES: tuple[Any, ...] = (
    None,
    rest_types.BROKER,
    rest_types.CLUSTER,
    rest_types.CLUSTERS,
    rest_types.CONFIGURATION,
    rest_types.INTERNAL_STATS,
    rest_types.NAMESPACE,
    rest_types.PARTITIONED_INTERNAL_STATS,
    rest_types.PARTITIONS,
    rest_types.PROPERTIES,
    rest_types.STATS,
    rest_types.TENANT,
    rest_types.topics_of("fleet/telemetry-eu"),
)

STATUSES = (200, 204, 401, 403, 404, 409, 429, 500, 503)
_ENTRY = len(SHAPES)


def asked(shape: int, status: int, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
    lines = [f"content-type: {kind}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return bytes([shape, STATUSES.index(status)]) + "\n".join(lines).encode() + b"\n\n" + body


def seeds() -> Iterable[bytes]:
    """Of each shape an answer with members that are used, and answers that are not of the cluster."""
    ledger = {"ledgerId": 5, "entries": 3, "size": 9}
    stats = {"ledgers": [ledger], "lastConfirmedEntry": "5:2", "cursors": {"s": {"markDeletePosition": "5:1"}}}
    values: dict[int, Any] = {
        1: {"brokerUrl": "pulsar://b:1", "brokerUrlTls": None},
        2: {"serviceUrl": "http://b", "brokerServiceUrl": "pulsar://b"},
        3: ["eu", "us"],
        4: {"clusterName": "eu"},
        5: stats,
        6: {"replication_clusters": ["eu"], "message_ttl_in_seconds": 5},
        7: {"metadata": {"partitions": 1}, "partitions": {"t-partition-0": stats}},
        8: {"partitions": 3},
        9: {"a": "b"},
        10: {"replication": {"us": {"replicationBacklog": 3, "connected": True}}, "subscriptions": {}},
        11: {"adminRoles": [], "allowedClusters": ["eu"]},
        12: ["persistent://fleet/telemetry-eu/batches-partition-0"],
    }
    for shape, value in values.items():
        yield asked(shape, 200, json.dumps(value).encode())
    yield asked(0, 204, b"", "")
    yield asked(0, 409, b'{"reason": "there already"}')
    yield asked(5, 200, b"<html>login</html>", "text/html")
    yield asked(9, 200, b"[" * 2000)
    yield asked(4, 403, b"\xff\xfe")
    entry = {"x_pulsar_message_id": "5:1", "x_pulsar_chunk_id": "1", "x_pulsar_num_chunks_from_msg": "3"}
    yield asked(_ENTRY, 200, b"x", **entry, x_pulsar_uuid="u", x_pulsar_txn_aborted="true")
    yield asked(_ENTRY, 200, b"x", x_pulsar_message_id="5:1", x_pulsar_chunk_id="9" * 5000)


def judge(data: bytes) -> None:
    """A value of the shape, or one of the two errors, whose text is short."""
    if len(data) < 2:
        return
    head, _, body = data[2:].partition(b"\n\n")
    pairs = (line.partition(": ") for line in head.decode("latin-1").split("\n"))
    headers = {name: value for name, _, value in pairs}
    answer = RestAnswer(
        cluster="eu",
        url="http://eu",
        action="GET x",
        status=STATUSES[data[1] % len(STATUSES)],
        content_type=headers.get("content-type", ""),
        body=body,
        headers=headers,
    )
    shape = data[0] % (len(SHAPES) + 1)
    try:
        if shape == _ENTRY:
            found = answer.entry_headers()
            assert found is None or StoredEntry.from_headers(found) is not None
        else:
            answer.value(SHAPES[shape], 404)
    except (AdminRefused, ClusterUnreachable) as error:
        check_refusal(error)
