"""A centre without Spark: messages become parts in this process, and a writer commits them to a real lake."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.micro_batch import CrashPoint, MicroBatchWriter
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_log import CoverageFile
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.ingest.test_decoding import Message, messages
from waybill.record import Batch, Canary, IntervalSet, Record, Tombstone, encode

DAY_US = 86_400_000_000
NOON_US = 1_767_614_400_000_000
STREAM = DeviceStream("acme", "d", 7)


def batch(
    *seqs: int, device: str = "d", head: int = 0, lost: tuple[Tombstone, ...] = (), word: str = "x", day: int = 0
) -> bytes:
    records = tuple(Record(seq, NOON_US + day * DAY_US + seq, Canary(id=f"{word}{seq}")) for seq in seqs)
    return encode(Batch(device, 7, head or max(seqs, default=0), records, lost))


def at_once(work: Callable[[], CoverageFile]) -> Future[CoverageFile]:
    outcome: Future[CoverageFile] = Future()
    outcome.set_result(work())
    return outcome


def new_ingest(lake: Lake, reached: Callable[[CrashPoint], None] = lambda _: None) -> MicroBatchWriter:
    return MicroBatchWriter(lake, submit=at_once, reached=reached)


def take_in(lake: Lake, writer: MicroBatchWriter, *tasks: Iterable[Message]) -> None:
    attempt = writer.begin()
    parts = [
        write_part(lake, decoded, attempt.ingest_number, attempt.now)
        for sent in tasks
        for decoded in decode_messages([messages(*sent)])
    ]
    writer.write(attempt, parts)


def seqs_in_table(lake: Lake, device: str = "d", tenant: str = "acme") -> list[int]:
    where = [("tenant", "=", tenant), ("device", "=", device)]
    return sorted(lake.rows("records", ["seq"], where=where)["seq"].to_pylist())


def coverage(lake: Lake, stream: DeviceStream = STREAM) -> Coverage:
    return lake.coverage().get(stream, Coverage())


def check(lake: Lake, device: str = "d", tenant: str = "acme") -> IntervalSet:
    """What is in the table, of which each record is there once and in the coverage, and nothing else is."""
    seqs = seqs_in_table(lake, device, tenant)
    assert len(seqs) == len(set(seqs)), "a record is there twice"
    found = IntervalSet.of(seqs)
    assert coverage(lake, DeviceStream(tenant, device, 7)).received == found
    return found
