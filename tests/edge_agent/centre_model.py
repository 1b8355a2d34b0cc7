"""What a centre has of one agent: each record id once, with one content."""

from dataclasses import replace
from typing import Any

from waybill.record import IntervalSet, Record, decode

Name = tuple[int, int]


class CentreModel:
    """All that the two regions ever received, and which names each of them did not."""

    def __init__(self) -> None:
        self.records: dict[Name, Record] = {}
        self.in_images: set[Name] = set()
        self.accounted: dict[int, IntervalSet] = {}
        self.lost_on_the_way: dict[tuple[str, int], IntervalSet] = {}
        self.answers: list[tuple[str, int, IntervalSet]] = []

    def take(self, region: str, data: bytes) -> None:
        batch = decode(data)
        for record in batch.records:
            name = (batch.epoch, record.seq)
            known = self.records.setdefault(name, record)
            # A jump may have been corrected after an image was made, which then knows the time of before.
            times: dict[str, Any] = {"device_time_us": 0, "uncertainty_ms": 0} if name in self.in_images else {}
            assert replace(known, **times) == replace(record, **times), "one id, one content"
        names = batch.header.seqs
        self.accounted[batch.epoch] = self.accounted.get(batch.epoch, IntervalSet()) | names
        self.answers.append((region, batch.epoch, names))

    def never_got(self, region: str, epoch: int, names: IntervalSet) -> None:
        before = self.lost_on_the_way.get((region, epoch), IntervalSet())
        self.lost_on_the_way[region, epoch] = before | names
