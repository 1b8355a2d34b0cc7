"""What passes the front door."""

from __future__ import annotations

import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import PushFolder
from gateway.inflight import BatchRules, Refusal, Sender, validate_batch
from gateway.push import MAX_RESULT_BYTES, UNKNOWN, PushQueue, parse_config_result
from gateway.registry_check import judge
from tests.gateway.strategies import batch
from tests.identity.makers import operator, operators_file
from tests.strategies import batches
from waybill.identity.registry import DeviceEntry, DeviceState
from waybill.identity.registry_messages import entry_body
from waybill.identity.signatures import ID_PROPERTY, NewOperator, next_publication_id, sign_push
from waybill.record import Header, RefusalReason, encode

RULES = BatchRules(max_batch_bytes=1 << 20)
D1 = Sender("fleet", "d1")


def reason(rules: BatchRules, sender: Sender, payload: bytes) -> str:
    verdict = validate_batch(rules, sender, payload)
    assert isinstance(verdict, Refusal)
    assert verdict.detail
    return verdict.reason


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "not-a-batch"),
        (b"hello", "not-a-batch"),
        (batch("d1", 1, 3)[:-1], "truncated"),
        (batch("d1", 1, 3) + b"x", "malformed"),
        (b"WB\x09" + batch("d1", 1, 3)[3:], "unknown-version"),
        (batch("d1", 1, 3)[:-1] + b"\xff", "checksum"),
        (batch("d2", 1, 3), "wrong-device"),
    ],
)
def test_a_batch_that_is_not_what_it_says_is_refused_with_a_word(payload: bytes, why: str) -> None:
    assert reason(RULES, D1, payload) == why


def test_a_tenant_that_is_not_served_is_refused() -> None:
    rules = BatchRules(max_batch_bytes=1 << 20, tenants={"fleet"})
    assert reason(rules, Sender("other", "d1"), batch("d1", 1, 3)) == "unknown-tenant"


def test_a_batch_that_is_too_large_is_refused_with_its_seqs_for_its_own_device() -> None:
    rules = BatchRules(max_batch_bytes=10)
    assert reason(rules, D1, batch("d1", 1, 3)) == "too-large"
    verdicts = [validate_batch(rules, D1, payload) for payload in (batch("d1", 1, 3), batch("d2", 1, 3), b"x" * 20)]
    headers = [verdict.header for verdict in verdicts if isinstance(verdict, Refusal)]
    assert [header and header.seqs.ranges for header in headers] == [((1, 3),), None, None]


@given(batches().map(encode), st.data())
def test_a_batch_with_one_changed_byte_never_passes(payload: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(payload) - 1))
    changed = bytearray(payload)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(validate_batch(RULES, Sender("fleet", "eu-0001"), bytes(changed)), Refusal)


def unreadable(payload: bytes) -> bytes:
    """The batch with a content that has the right checksum and says nothing."""
    version, header_length = payload[2], int.from_bytes(payload[8:12], "big")
    header, content = payload[16 : 16 + header_length], b"\xc0"
    lengths = header_length.to_bytes(4, "big") + len(content).to_bytes(4, "big")
    checksum = zlib.crc32(header + content, zlib.crc32(bytes([version, 0]) + lengths))
    return payload[:3] + b"\0" + checksum.to_bytes(4, "big") + lengths + header + content


def test_a_batch_that_the_centre_could_not_read_is_refused_with_its_seqs() -> None:
    verdict = validate_batch(RULES, D1, unreadable(batch("d1", 1, 3)))
    assert isinstance(verdict, Refusal)
    assert verdict.reason == "malformed"
    assert verdict.header is not None
    assert verdict.header.seqs.ranges == ((1, 3),)


BUS = Sender("acme", "bus-1")
ALL = {f"acme/{state.value}": state for state in DeviceState}


@pytest.mark.parametrize("state", DeviceState)
def test_only_what_is_active_or_expected_is_taken(state: DeviceState) -> None:
    refusal = judge(ALL.get, lambda _: True, refuses_unknown=True)(Sender("acme", state.value))
    if state in {DeviceState.ACTIVE, DeviceState.EXPECTED}:
        assert refusal is None
    else:
        assert refusal == Refusal(RefusalReason.DEVICE_NOT_ACTIVE, f"the registry says it is {state}")


def test_nobody_is_unknown_before_all_are_known_or_where_unknown_devices_are_taken() -> None:
    assert judge(ALL.get, lambda _: False, refuses_unknown=True)(BUS) is None
    assert judge(ALL.get, lambda _: True, refuses_unknown=False)(BUS) is None


def test_a_batch_of_a_device_that_is_not_active_is_refused_whatever_is_in_it() -> None:
    closed = judge({"fleet/d1": DeviceState.SUSPENDED}.get, lambda _: True, refuses_unknown=True)
    rules = BatchRules(max_batch_bytes=1 << 20, refusal_of=closed)
    verdict = validate_batch(rules, Sender("fleet", "d1"), batch("d1", 1, 3))
    assert isinstance(verdict, Refusal)
    assert verdict.reason is RefusalReason.DEVICE_NOT_ACTIVE
    free = BatchRules(max_batch_bytes=1 << 20)
    assert isinstance(validate_batch(free, Sender("fleet", "d1"), batch("d1", 1, 3)), Header)


class Entry:
    def __init__(self, entry: DeviceEntry, at_s: float) -> None:
        self._entry, self._at_ms = entry, int(at_s * 1000)

    def message_id(self) -> int:
        return self._at_ms

    def partition_key(self) -> str:
        return self._entry.name

    def data(self) -> bytes:
        return entry_body(self._entry)

    def properties(self) -> dict[str, str]:
        return {ID_PROPERTY: next_publication_id(None, self._at_ms, 7)}

    def publish_timestamp(self) -> int:
        return self._at_ms


class Cluster:
    """A client and its readers: each begins with all messages."""

    def __init__(self, *messages: Entry) -> None:
        self._all, self._left, self.readers = messages, list[Entry](), 0

    def __call__(self, *_: Any, **__: Any) -> Cluster:
        return self

    def create_reader(self, *_: Any, **__: Any) -> Cluster:
        self._left, self.readers = [*self._all], self.readers + 1
        return self

    def is_connected(self) -> bool:
        return True

    def has_message_available(self) -> bool:
        return bool(self._left)

    def read_next(self, _: int) -> Entry:
        if not self._left:
            import pulsar  # noqa: PLC0415

            threading.Event().wait(0.01)
            raise pulsar.Timeout
        return self._left.pop(0)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[" * 80_000,
        b'{"a":' * 80_000,
        b"1e999",
        b'{"outcome": "\\ud83d"}',
        b'{"outcome": ["applied"]}',
        b'{"outcome": "done"}',
        b'["applied"]',
        b'{"outcome": "applied", "outcome": "refused"}',
        b'{"outcome": "applied", "reason": "' + b"x" * MAX_RESULT_BYTES + b'"}',
    ],
)
def test_an_answer_that_cannot_be_read_is_unknown_and_says_why(payload: bytes) -> None:
    began = time.perf_counter()
    outcome, reason = parse_config_result(payload)
    assert time.perf_counter() - began < 0.05
    assert outcome == UNKNOWN
    assert 0 < len(reason) <= 500


def queue_of(folder: Path, *trusted: NewOperator) -> tuple[PushQueue, list[str]]:
    refused: list[str] = []
    settings = PushFolder(folder=folder, operators=operators_file(folder / "operators.toml", *trusted))
    return PushQueue(settings, lambda: refused.append("refused")), refused


def test_a_gateway_publishes_what_was_signed_for_that_device_and_counts_the_rest(tmp_path: Path) -> None:
    anna, acme = operator("anna"), operator("acme clerk", tenants=("acme",))
    (tmp_path / "beta").mkdir()
    files = {
        "good": sign_push(anna.key, "beta/good", 5, b"a = 1\n"),
        "unsigned": b"a = 1\n",
        "altered": sign_push(anna.key, "beta/altered", 5, b"a = 1\n").replace(b"a = 1", b"a = 2"),
        "another": sign_push(anna.key, "beta/other", 5, b"a = 1\n"),
        "tenant": sign_push(acme.key, "beta/tenant", 5, b"a = 1\n"),
        "unknown": sign_push(operator("lost").key, "beta/unknown", 5, b"a = 1\n"),
    }
    for name, text in files.items():
        (tmp_path / "beta" / f"{name}.toml").write_bytes(text)
    queue, refused = queue_of(tmp_path, anna, acme)
    published = []
    while queue.has_waiting:
        if push := queue.take_next():
            published.append((push.sender.device, push.text))
    assert (published, len(refused)) == ([("good", files["good"])], len(files) - 1)
