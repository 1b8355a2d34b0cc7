"""The centre of a trial: ingest and usage in one Spark session, and the draft of one payer.

    python -m deploy.trial.centre STACK_FOLDER TENANT DEVICE PAYER EVENTS_FILE

The process starts Spark at once and waits for the stack beside it. It appends events to a file, one JSON object a line.
Two processes of `cloud-jobs` would start Spark twice.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pulsar
from pyspark.sql import SparkSession

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import Contracts
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register.close import UnratedPayer, UsageReader, rate_payers
from cloud_jobs.billing.units import MEASURE_OF, Meter, amount_text, place_text, quantity_text
from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError
from cloud_jobs.explain.explanation import Explanation
from cloud_jobs.explain.issued_line import explain_charge
from cloud_jobs.ingest.job import start_ingest
from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import miscounted, publications, reference_table
from cloud_jobs.lake.snapshots import newest_state
from cloud_jobs.lake.tables import Condition, Lake
from cloud_jobs.lake.transactions import counter_of
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.reference.tables import store
from cloud_jobs.spark import start_spark
from cloud_jobs.spark_python import SOURCE
from cloud_jobs.usage.job import compute_usage
from deploy.local import LocalStackError
from deploy.local.stack_state import wait_for_stack
from geo.reference.messages import NAMESPACE, TOPICS, Kind
from waybill.daemon.signals import stop_on_signals
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly, open_pulsar_client
from waybill.settings import SettingsError, load

# The draft of a payer: rated from usage, and each charge again from the records.


class DraftLine(NamedTuple):
    """A charge as text. `agrees`: whether usage and records reproduce it; `doubt`: what does not, or ""."""

    text: str
    agrees: bool | None
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The running period of a payer as of now: provisional, without a number.

    `lines`, `entries`: of the device; the entries are into `zone`.
    """

    period: str
    currency: str
    net_minor: int
    lines: tuple[DraftLine, ...]
    entries: int
    zone: str

    @property
    def agrees(self) -> bool | None:
        """Whether each amount was computed again, and is the same. None if any is unknown."""
        found = [one.agrees for one in self.lines]
        return False if False in found else None if None in found else True

    @property
    def doubt(self) -> str:
        """What differs in the first line that was computed again and is another one; "" if none is."""
        return next((f"{one.text}: {one.doubt}" for one in self.lines if one.agrees is False), "")

    @property
    def net(self) -> str:
        return f"{amount_text(self.net_minor, self.currency)} {self.currency}"


def draft(lake: Lake, payer: str, device: TenantDevice, period: BillingPeriod) -> Draft:
    """The running period of a payer at the newest state of the lake, rated as by `waybill bill preview`.

    Raises BillingError, LakeError.
    """
    state = newest_state(lake)
    reference = reference_table(lake, state)
    contract = Contracts(publications(reference)).contract_of(payer, period)
    (found,) = rate_payers(UsageReader(lake, state, miscounted=miscounted(lake, state)), [contract])
    if isinstance(found, UnratedPayer):
        raise BillingError(found.reason)
    rated = found.rated
    mine = [one for one in rated.charges if (one.key.tenant, one.key.device) == device and one.amount_minor]
    entered = [one for one in mine if one.key.meter is Meter.ENTRY]
    return Draft(
        period=f"{period.first_day:%Y-%m}",
        currency=rated.currency,
        net_minor=rated.net_minor,
        lines=tuple(
            _line(rated.currency, one, lambda one: explain_charge(lake, state, contract, one, reference).explanation)
            for one in mine
        ),
        entries=sum(one.quantity for one in entered),
        zone=", ".join(one.key.zone for one in entered),
    )


def _line(currency: str, charge: Charge, explained: Callable[[Charge], Explanation]) -> DraftLine:
    key, meter = charge.key, charge.key.meter
    amount = f"{amount_text(charge.amount_minor, currency)} {currency}"
    if meter is None:
        return DraftLine(f"{key.kind.value} {amount}", agrees=True)
    place = place_text(meter, key.zone)
    what = f"{meter.value}{f' {place}' if place else ''}"
    quantity = f"{quantity_text(meter, charge.quantity)} {MEASURE_OF[meter].unit}"
    found = explained(charge)
    other = [f"{one.hour:%Y-%m-%d %H:00}" for one in found.hours if one.agrees is False]
    doubt = f"the records of {', '.join(other)} give another usage" if other else "usage gives another amount"
    return DraftLine(f"{what}: {quantity} at {key.price} = {amount}", found.agrees, "" if found.agrees else doubt)


# The process.

_POLL_S: Final = 0.25
_PULSAR_S: Final = 30
_COLLECT_S: Final = 2.0
_SMALL: Final = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
_SETTINGS: Final = "cloud.toml"
_TIME_ZONE: Final = "UTC"
# Spark's JVM lives for minutes: the quick compiler alone costs less than the other one gains.
_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class CentreEvents:
    """Appends events to a file that another process reads while it grows."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", encoding="utf-8")

    def say(self, event: str, **facts: object) -> None:
        self._file.write(json.dumps({"event": event, "at": datetime.now(UTC).isoformat(), **facts}) + "\n")
        self._file.flush()


@dataclass(slots=True)
class CentreLoop:
    """Follows one device through the lake. `settings`: those of the stack's jobs. The fence is called as the payer."""

    spark: SparkSession
    settings: CloudSettings
    device: TenantDevice
    payer: str
    events: CentreEvents
    seen: int = 0
    commit: int = 0
    said: str = ""
    is_known: bool = False
    """Whether the payer's contract and the fence are in the lake."""
    is_entered: bool = False

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. Raises CloudError when the ingest ends."""
        lake = self.settings.tables
        # what an earlier trial of this device left says nothing about this one
        self.commit = counter_of(lake.ingest_commit())
        ingest = start_ingest(self.spark, self.settings, available_now=False)
        self.events.say("ready")
        collected_s = 0.0
        try:
            while not stop.wait(_POLL_S):
                if not ingest.query.isActive:
                    fenced = ingest.micro_batch.fenced
                    raise CloudError(str(fenced or ingest.query.exception() or "the ingest has ended"))
                found = self._new_records(lake)
                if found:
                    self.seen += len(found)
                    self.events.say("records", count=self.seen, newest=max(found))
                is_new = not self.is_known and time.monotonic() - collected_s > _COLLECT_S and self._collect(lake)
                collected_s = collected_s if self.is_known else time.monotonic()
                if self.seen and self.is_known and (found or is_new):
                    compute_usage(self.spark, lake, self.settings.tracks)
                    self._draft(lake)
        finally:
            ingest.query.stop()

    def _new_records(self, lake: Lake) -> list[int]:
        """The seq of each record of the device that the ingest has committed since the last call."""
        newest = counter_of(lake.ingest_commit())
        if newest <= self.commit:
            return []
        where: list[Condition] = [
            ("tenant", "=", self.device.tenant),
            ("device", "=", self.device.device),
            ("ingest_number", ">", self.commit),
            ("ingest_number", "<=", newest),
        ]
        self.commit = newest
        return [int(one) for one in lake.rows("records", ["seq"], where=where)["seq"].to_pylist()]

    def _collect(self, lake: Lake) -> bool:
        """Copies what was published into the lake; whether contract and fence are there now."""
        store(lake, _published(self.settings), self.settings.reference.trust())
        rows = lake.rows("reference", ["kind"], where=[("id", "=", self.payer)])
        self.is_known = {"account", "fence"} <= {*rows["kind"].to_pylist()}
        return self.is_known

    def _draft(self, lake: Lake) -> None:
        period = BillingPeriod.parse(f"{datetime.now(UTC):%Y-%m}", _TIME_ZONE)
        try:
            found = draft(lake, self.payer, self.device, period)
        except BillingError as error:
            self.events.say("unrated", why=str(error))
            return
        if found.entries and not self.is_entered:
            self.is_entered = True
            self.events.say("entered", place=found.zone, entries=found.entries)
        lines = [one.text for one in found.lines]
        facts = {"lines": lines, "net": found.net, "agrees": found.agrees, "period": found.period, "doubt": found.doubt}
        if lines and (text := json.dumps(facts)) != self.said:
            self.events.say("draft", **facts)
            self.said = text


def _published(settings: CloudSettings) -> dict[Kind, list[dict[str, Any]]]:
    """All publications of the reference topics, with the columns of the source `pulsar`.

    `cloud-jobs usage` reads them in Spark, with a job for each topic: seconds that a trial has no use for.
    """
    found: dict[Kind, list[dict[str, Any]]] = {}
    client = open_pulsar_client(settings.service_urls[0], settings.access, timeout_s=_PULSAR_S)
    try:
        for kind, topic in TOPICS.items():
            reader = client.create_reader(f"{NAMESPACE}/{topic}", pulsar.MessageId.earliest, is_read_compacted=True)
            found[kind] = []
            while reader.has_message_available():
                message = reader.read_next(_PULSAR_S * 1000)
                found[kind].append(
                    {
                        "key": message.partition_key(),
                        "value": message.data(),
                        "properties": [*message.properties().items()],
                        "publish_time": datetime.fromtimestamp(message.publish_timestamp() / 1000, UTC),
                        "message_id": str(message.message_id()),
                        "malformed": None,
                    }
                )
            reader.close()
    finally:
        close_quietly(client)
    return found


@contextmanager
def _session(folder: Path) -> Iterator[SparkSession]:
    """A session with the stack's settings; those of a stack that has none yet are the defaults."""
    settings = load_cloud(folder) if (folder / _SETTINGS).exists() else None
    spark = start_spark(
        "waybill-try",
        settings.spark if settings else SparkSettings(),
        settings.location if settings else None,
        task_imports=(SOURCE, "cloud_jobs.ingest.parts", "cloud_jobs.spark"),
    )
    try:
        spark.dataSource.register(PulsarDataSource)
        # a device has a handful of rows: hundreds of tasks would only cost time
        for name, value in _SMALL.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        spark.stop()


def load_cloud(folder: Path) -> CloudSettings:
    """The settings of the stack's jobs. Raises SettingsError."""
    return load(CloudSettings, folder / _SETTINGS).beside(folder)


def main(arguments: Sequence[str]) -> int:
    folder, tenant, device, payer, file = arguments
    events = CentreEvents(Path(file))
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(_JVM))
    try:
        with _session(Path(folder)) as spark, stop_on_signals() as stop:
            events.say("spark")
            # starts Spark's Python, which it would do when the first message waits
            spark.range(2).mapInArrow(lambda rows: rows, "id long").toArrow()
            # its settings are there before its topics
            if wait_for_stack(Path(folder), stop, ("connecting", "ready")):
                settings = load_cloud(Path(folder))
                settings.tables.create()
                if wait_for_stack(Path(folder), stop):
                    CentreLoop(spark, settings, TenantDevice(tenant, device), payer, events).run(stop)
    except (CloudError, LocalStackError, SettingsError, PulsarAccessError, pulsar.PulsarException, OSError) as error:
        events.say("failed", why=str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
