"""What a Pulsar cluster answers and sends, what is published to its topics, and the servers of a process."""

import io
import json
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from cloud_jobs.billing.contracts import contracts_of_toml
from cloud_jobs.derived.fences import changes_between
from cloud_jobs.pulsar_source.entries import Fate
from cloud_jobs.reference.files import usable
from cloud_jobs.reference.tables import in_force, parse_fences
from geo.reference.in_force import published_fences
from geo.reference.messages import ANYBODY, TOPICS, Kind, read_messages, stated_version
from geo.replication import rest_types
from geo.replication.admin import RestAnswer
from geo.replication.errors import AdminRefused, ClusterUnreachable
from tests.cloud_jobs.billing.contracts.test_toml_text import EXAMPLE
from tests.cloud_jobs.publications import message_of
from tests.fuzz.bounds import Target, refused_as
from tests.fuzz.targets.files import FEATURES
from waybill.daemon.status_server import MAX_HEAD_BYTES, _handler, json_answer

LEDGERS: Any = {
    "ledgers": [{"ledgerId": 5, "entries": 3, "size": 9}],
    "lastConfirmedEntry": "5:2",
    "cursors": {"s": {"markDeletePosition": "5:1"}},
}
SHAPES: tuple[tuple[Any, Any], ...] = (
    (None, None),
    (rest_types.CLUSTER, {"serviceUrl": "http://b", "brokerServiceUrl": "pulsar://b"}),
    (rest_types.CLUSTERS, ["eu", "us"]),
    (rest_types.CONFIGURATION, {"clusterName": "eu"}),
    (rest_types.INTERNAL_STATS, LEDGERS),
    (rest_types.NAMESPACE, {"replication_clusters": ["eu"], "message_ttl_in_seconds": 5}),
    (rest_types.PARTITIONED_INTERNAL_STATS, {"metadata": {"partitions": 1}, "partitions": {"t-partition-0": LEDGERS}}),
    (rest_types.PARTITIONS, {"partitions": 3}),
    (rest_types.PROPERTIES, {"a": "b"}),
    (rest_types.STATS, {"replication": {"us": {"replicationBacklog": 3, "connected": True}}, "subscriptions": {}}),
    (rest_types.TENANT, {"adminRoles": [], "allowedClusters": ["eu"]}),
    (rest_types.topics_of("fleet/telemetry-eu"), ["persistent://fleet/telemetry-eu/batches-partition-0"]),
)
"""What is asked for, and an answer with members that are used. One more is a stored entry."""
STATUSES = (200, 204, 401, 403, 404, 409, 429, 500, 503)


def asked(shape: int, status: int, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
    """The first byte chooses what was asked, the second the status; then headers, an empty line and the body."""
    lines = [f"content-type: {kind}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return bytes([shape, STATUSES.index(status)]) + "\n".join(lines).encode() + b"\n\n" + body


def judge_admin_answer(data: bytes) -> None:
    """A value of the shape, or one of the two errors, whose text is short."""
    if len(data) < 2:
        return
    head, _, body = data[2:].partition(b"\n\n")
    headers = {name: value for name, _, value in (line.partition(": ") for line in head.decode("latin-1").split("\n"))}
    answered = RestAnswer(
        cluster="eu",
        url="http://eu",
        action="GET x",
        status=STATUSES[data[1] % len(STATUSES)],
        content_type=headers.get("content-type", ""),
        body=body,
        headers=headers,
    )
    shape = data[0] % (len(SHAPES) + 1)
    with refused_as(AdminRefused, ClusterUnreachable):
        if shape == len(SHAPES):
            Fate.from_headers(answered.entry_headers())
        else:
            answered.value(SHAPES[shape][0], 404)


KINDS: tuple[Kind, ...] = tuple(TOPICS)
MAX_REASON_CHARACTERS = 20_000


def publication(kind: Any, body: Any) -> bytes:
    """The input that stands for one: the first byte chooses the kind; then come the key, a line end, and the value."""
    name, begin = stated_version(kind, body)
    return bytes([KINDS.index(kind)]) + f"{name}@{begin}\n{json.dumps(body)}".encode()


def read_publication(data: bytes) -> Any:
    """What every collector does. Its publication id is right: whoever may publish makes one."""
    kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    key, _, value = data[1:].partition(b"\n")
    message = message_of(kind, None) | {"key": key.decode("utf-8", "replace"), "value": value}
    return kind, read_messages(kind, [message], ANYBODY)


def judge_publication(data: bytes) -> None:
    """A publication or a quarantined message; and a publication is in force, or refused with a reason."""
    kind, read = read_publication(data)
    assert len(read.publications) + len(read.quarantined) == 1
    found = in_force(read.publications, usable)
    assert len(found.held) + len(found.refused) == len(read.publications)
    assert all(len(str(one)) < MAX_REASON_CHARACTERS for one in found.refused)
    if kind == "fence":
        features = published_fences(read.publications).features
        assert len(features) == len(found.held)
        parse_fences(features)
        changes_between((), features, 0)


HANDLER = _handler({"/status": lambda: json_answer("{}")})


class Accepted:
    """An accepted connection: gives its bytes, and keeps what is answered."""

    def __init__(self, data: bytes) -> None:
        self.given, self.answer = io.BytesIO(data), b""

    def makefile(self, *_: Any) -> io.BytesIO:
        return self.given

    def settimeout(self, _: float) -> None:
        """Nothing waits."""

    def sendall(self, data: bytes) -> None:
        self.answer += bytes(data)


class Server:
    """The server that accepted it, on loopback: as strict as it is about hosts."""

    is_loopback: Final = True

    def begin_answer(self, _: Accepted) -> bool:
        return True


def judge_request(data: bytes) -> None:
    """Nothing is raised; one answer is given or none, of bounded length, and no more is read than a head may have."""
    accepted = Accepted(data)
    made: Any = accepted
    server: Any = Server()
    handler: BaseHTTPRequestHandler = HANDLER(made, ("127.0.0.1", 1), server)
    assert handler.close_connection
    assert accepted.answer.count(b"HTTP/1.0 ") <= 1
    assert len(accepted.answer) < 8 * MAX_HEAD_BYTES


TARGETS = {
    "admin_answer": Target(
        (
            *(asked(at, 200, json.dumps(value).encode()) for at, (_, value) in enumerate(SHAPES) if value),
            asked(0, 204, b"", ""),
            asked(0, 409, b'{"reason": "there already"}'),
            asked(4, 200, b"<html>login</html>", "text/html"),
            asked(8, 200, b"[" * 2000),
            asked(3, 403, b"\xff\xfe"),
            asked(
                len(SHAPES),
                200,
                b"x",
                x_pulsar_message_id="5:1",
                x_pulsar_chunk_id="1",
                x_pulsar_num_chunks_from_msg="3",
                x_pulsar_uuid="u",
                x_pulsar_txn_aborted="true",
            ),
            asked(len(SHAPES), 200, b"x", x_pulsar_message_id="5:1", x_pulsar_chunk_id="9" * 5000),
        ),
        judge_admin_answer,
    ),
    "reference_message": Target(
        (
            *(publication("fence", feature) for feature in FEATURES),
            *(
                publication(one.kind, one.made.model_dump(mode="json", exclude_defaults=True))
                for one in contracts_of_toml(EXAMPLE)[0]
            ),
            publication("fence", FEATURES[0] | {"x": json.loads("[" * 14 + "]" * 14)}),
            b"\x00a@\n" + b'{"id":"a","properties":{"effective_from":[1]},"geometry":' + b"[" * 15 + b"]" * 15 + b"}",
            b"\x01t@2026-01-01\n" + b'{"id":"t","effective_from":"2026-01-01","prices":[' + b"{}," * 9000 + b"{}]}",
            b"\x02a@\n" + b'{"id":"a","devices":[' + b'{"device":"\\u0000"},' * 1000 + b"1e308]}",
            b"\x04usd-eur@0001-01-01T00:00+23:59\n" + b'{"id":"usd-eur","effective_from":"0001-01-01T00:00+23:59"}',
        ),
        judge_publication,
        read_publication,  # what a shape takes is bounded by its corners
    ),
    "status_request": Target(
        (
            b"GET /status?x HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n",
            b"GET /status HTTP/1.1\r\nHost: localhost:1\r\n\r\n",
            b"GET /none HTTP/1.0\r\n\r\nGET /status HTTP/1.0\r\n\r\n",
            b"GET /status\r\n\r\n",
            b"POST //status HTTP/1.1\nContent-Length: 99999999999\n\n{}",
            b"GET /status HTTP/\xb2.1\r\n\r\n",
            b"GET /status HTTP/2.0\r\nA: b\r\n c\r\n\xff: \xff\r\nno colon\r\n\r\n",
            b"GET " + b"/" * 60_000,
            b"GET /status HTTP/1.1\r\n" + b"a:b\r\n" * 12_000,
            b"GET /status HTTP/1.1\r\n" + b"a:" + b"b" * 60_000,
        ),
        judge_request,
    ),
}
