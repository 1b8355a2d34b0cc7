"""The state of one partition's devices, made from its messages in order, by an owner or a standby."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple, cast

import structlog

from gateway.alerts.evaluation import AlertRules, FoundEvent, LiveEvents
from gateway.alerts.fixes import FixColumns
from gateway.alerts.metrics import AlertMetrics
from gateway.errors import last_line
from geo.alerts import Alert
from geo.spatial import Kind
from waybill.identity.errors import Unsealable
from waybill.identity.sealing import Unsealer, is_sealed
from waybill.record import DEVICE_PATTERN, WireError
from waybill.record.columns import RecordColumns, decode_columns

# Records of a message of a batch topic, or the reason to skip it. Pure.


class UnusableBatch(Exception):
    """A message that is no batch of a tenant of its topic; `reason` is one word."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def read_batch(
    payload: bytes, properties: Mapping[str, str], *, tenants: frozenset[str], unsealer: Unsealer
) -> tuple[str, RecordColumns]:
    """The tenant and the records of a batch. Raises UnusableBatch, and nothing else for any bytes.

    `tenants`: the tenants whose batches the topic may have.
    """
    tenant = properties.get("tenant", "")
    # before a key is used, so that a message cannot choose another tenant's key
    if tenant not in tenants:
        raise UnusableBatch("tenant", f"a batch of {tenant[:100]!r} on a topic of {', '.join(sorted(tenants))}")
    if is_sealed(payload):
        region = properties.get("region", "")
        if not DEVICE_PATTERN.fullmatch(region):
            raise UnusableBatch("region", "a sealed batch without the name of a region")
        try:
            payload = unsealer.unseal(payload, tenant, region)
        except Unsealable as error:
            raise UnusableBatch("sealed", str(error)) from error
    try:
        return tenant, decode_columns(payload)
    except WireError as error:
        raise UnusableBatch(error.reason, str(error)) from error


# One evaluation and its alerts. Pure.

# short enough that the alerts of its first message are not late
MAX_MESSAGES: Final = 2000
MAX_RECORDS: Final = 50_000
MAX_CONTENT: Final = 32 << 20
"""Bounds of the records and bytes that are held at once."""
ReadBatch = tuple[str, RecordColumns, int]
"""Tenant, records, and arrival in the region (ms since 1970)."""


class EvaluationPart(NamedTuple):
    """Messages that are evaluated together, and the batches with records in them."""

    messages: list[Any]
    batches: list[ReadBatch]


def parts_of(read: Iterable[tuple[Any, ReadBatch | None]]) -> Iterator[EvaluationPart]:
    """Messages in groups of about MAX_RECORDS records and MAX_CONTENT bytes at most."""
    part, records, size = EvaluationPart([], []), 0, 0
    for message, batch in read:
        part.messages.append(message)
        if batch is not None and len(batch[1].seq):
            part.batches.append(batch)
            records += len(batch[1].seq)
            size += batch[1].size
        if records >= MAX_RECORDS or size >= MAX_CONTENT or len(part.messages) >= MAX_MESSAGES:
            yield part
            part, records, size = EvaluationPart([], []), 0, 0
    if part.messages:
        yield part


def alert_of(found: FoundEvent, region: str, now_ms: int) -> Alert:
    event = found.event
    return Alert(
        id=found.id,
        tenant=found.tenant,
        device=found.device,
        region=region,
        epoch=event.epoch,
        seq=event.seq,
        kind=cast("Kind", event.kind),
        place=event.place,
        t_ms=event.t_ms,
        value=event.value,
        received_ms=found.received_ms,
        raised_ms=now_ms,
        seen_until=found.seen_until,
    )


_LOG = structlog.get_logger("alerts")


class PartitionSettings(NamedTuple):
    region: str
    tenants: frozenset[str]
    unsealer: Unsealer
    rewind_ms: int


class PartitionEvaluation:
    """The evaluation of one partition. One thread at a time.

    `last_id`: the id of the last message taken, or None. `rules_now` returns the current rules; it must have some.
    """

    def __init__(
        self,
        name: str,
        settings: PartitionSettings,
        rules_now: Callable[[], AlertRules | None],
        evaluate: Callable[[AlertRules], LiveEvents],
        metrics: AlertMetrics,
    ) -> None:
        self.name, self.settings = name, settings
        self._rules_now, self._evaluate, self._metrics = rules_now, evaluate, metrics
        now = rules_now()
        assert now is not None, "nothing is evaluated before there are rules"
        self.rules = now
        self._live = evaluate(now)
        self._passed_over: dict[str, int] = {}
        self.last_id: Any = None

    @property
    def device_count(self) -> int:
        return self._live.device_count

    def follow_rules(self) -> None:
        rules = self._rules_now()
        if rules is not None and rules is not self.rules:
            self.rules = rules
            self._live.replace_rules(rules)

    def parts(self, messages: Iterable[Any], *, report: bool) -> Iterator[EvaluationPart]:
        """The messages in parts. Take each part before asking for the next one."""
        return parts_of(self._read(messages, report=report))

    def take(self, part: EvaluationPart, *, report: bool) -> Sequence[FoundEvent]:
        """The events of the next messages. `report=False`: nothing is returned or counted."""
        found = self._evaluated(part, report=report) if part.batches else ()
        self.last_id = part.messages[-1].message_id()
        return found

    def _evaluated(self, part: EvaluationPart, *, report: bool) -> Sequence[FoundEvent]:
        began_s = time.monotonic()
        try:
            fixes = FixColumns.of(part.batches)
            found: Sequence[FoundEvent] = self._live.take(fixes, round(time.time() * 1000), report=report)
            count = len(fixes)
        except Exception as error:  # noqa: BLE001 - of whatever kind: one batch must not end the alerts of all
            _LOG.error("an evaluation failed; its batches are evaluated one by one", problem=last_line(error))
            found = [event for one in part.batches for event in self._evaluated_alone(one, report=report)]
            count = 0
        before, self._passed_over = self._passed_over, asdict(self._live.passed_over)
        if report:
            self._metrics.on_evaluated(count, time.monotonic() - began_s)
            self._metrics.on_fixes_passed_over(
                {reason: number - before.get(reason, 0) for reason, number in self._passed_over.items()}
            )
        return found

    def _evaluated_alone(self, batch: ReadBatch, *, report: bool) -> Sequence[FoundEvent]:
        try:
            return self._live.take(FixColumns.of([batch]), round(time.time() * 1000), report=report)
        except Exception as error:  # noqa: BLE001 - as above
            if report:
                self._metrics.passed_over.labels("internal-error").inc()
            name = f"{batch[0]}/{batch[1].header.device}"
            _LOG.error("a batch is skipped", partition=self.name, device=name, problem=last_line(error))
            return ()

    def _read(self, messages: Iterable[Any], *, report: bool) -> Iterator[tuple[Any, ReadBatch | None]]:
        """Each message with its batch; None: it is skipped."""
        settings = self.settings
        for message in messages:
            try:
                tenant, columns = read_batch(
                    message.data(), _properties(message), tenants=settings.tenants, unsealer=settings.unsealer
                )
                yield message, (tenant, columns, message.publish_timestamp())
            except UnusableBatch as passed:
                if report:
                    self._metrics.passed_over.labels(passed.reason).inc()
                    _LOG.warning("a message is skipped", partition=self.name, problem=str(passed))
                yield message, None


def _properties(message: Any) -> dict[str, str]:
    try:
        return dict(message.properties())
    except UnicodeDecodeError:
        # without a tenant it is skipped
        return {}
