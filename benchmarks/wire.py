"""`make bench-wire`: what a batch costs to write, judge and read, and the worst 64 kB for each parser."""

import math
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from benchmarks.harness import parser_of
from tests.fuzz.bounds import MAX_BYTES
from tests.fuzz.worst import PARSERS
from waybill.record import Batch, Canary, Event, Position, Record, Signal, decode, encode, read_header, validate
from waybill.record.columns import decode_columns
from waybill.record.errors import TelemetryError

NOON_US = 1_767_614_400_000_000


def best_us(work: Callable[[], object], seconds: float = 0.5) -> float:
    best, end = math.inf, time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - start)
    return best / 1000


def position(number: int) -> Position:
    return Position(
        latitude=53.5 + math.sin(number / 300) / 100,
        longitude=10 + math.cos(number / 300) / 100,
        altitude_m=12 + math.sin(number / 17),
        speed_mps=15 + 14 * math.sin(number / 23),
        heading_deg=number * 0.19 % 360,
        accuracy_m=3 + math.sin(number) * 2,
    )


def body(number: int) -> Position | Signal | Event | Canary:
    match number % 4:
        case 0:
            return position(number)
        case 1:
            return Signal(path=f"Vehicle.Signal{number % 3}", value=round(math.sin(number) * 100, 2))
        case 2:
            return Event(name="trip_end", attributes=f'{{"driver":"{number}"}}')
    return Canary(id=f"canary-{number}")


def batch(records: int, body_of: Callable[[int], Position | Signal | Event | Canary]) -> Batch:
    made = (
        Record(number, NOON_US + number * 1_000_003, body_of(number), number * 1_000_003, "boot-a")
        for number in range(1, records + 1)
    )
    return Batch("eu-0001", 1 << 60, records, tuple(made))


def judged(parser: Callable[[bytes], object], data: bytes) -> str:
    try:
        parser(data)
    except TelemetryError:
        return "refused"
    return "read"


def main() -> None:
    parser_of(__doc__).parse_args()
    print(f"{'batch':24}{'bytes':>8}{'encode':>9}{'header':>9}{'validate':>9}{'decode':>9}{'columns':>9}  µs")
    for name, its in (("positions", position), ("every kind", body)):
        for records in (20, 200, 2000):
            one = batch(records, its)
            data = encode(one)
            works = [partial(encode, one), *(partial(f, data) for f in (read_header, validate, decode, decode_columns))]
            print(f"{records:5} {name:18}{len(data):8}" + "".join(f"{best_us(work):9.0f}" for work in works))
    print()
    for parser_name, parser, inputs in PARSERS:
        for name, data in inputs():
            assert len(data) <= MAX_BYTES, (name, len(data))
            took_ms = best_us(partial(judged, parser, data), 0.3) / 1000
            tracemalloc.start()
            verdict = judged(parser, data)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            print(f"{parser_name:18}{name:44}{len(data):7} B{took_ms:8.1f} ms{peak / (1 << 20):8.1f} MiB  {verdict}")


if __name__ == "__main__":
    main()
