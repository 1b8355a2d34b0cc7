"""What happens, step by step: contracts are published, batches arrive, and the bill is closed, issued and adjusted."""

from dataclasses import dataclass
from datetime import UTC, datetime

from simulator.month.agreements import (
    NEW_BEND,
    NEW_HARBOUR,
    contracts_at_first,
    fence_moved,
    fences_at_first,
    rate_published,
    tariff_published,
)
from simulator.month.deliveries import SILENT, ArrivedBatch, DeviceJournal, sent_by, shuffled
from simulator.month.drives import VEHICLES


@dataclass(frozen=True, slots=True)
class Publish:
    """Reference data becomes known: contracts as TOML ("": none), and GeoJSON features, each a text."""

    at: datetime
    contracts: str = ""
    fences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deliver:
    """Batches arrive, in this order."""

    at: datetime
    deliveries: tuple[ArrivedBatch, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """Somebody answers for a device that fell silent, up to a moment."""

    at: datetime
    tenant: str
    device: str
    until: datetime
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """The bill of all payers is closed, to be looked at."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Issue:
    """It is closed, and the final ones are issued."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Adjust:
    """It is closed anew, and differences are posted."""

    at: datetime


Step = Publish | Deliver | Decide | Close | Issue | Adjust


@dataclass(frozen=True, slots=True)
class Month:
    """March 2026: what the devices made, and the steps in order."""

    journals: tuple[DeviceJournal, ...]
    steps: tuple[Step, ...]

    @property
    def records(self) -> int:
        """How many records were made."""
        return sum(len(journal.records) for journal in self.journals)


def hard_month(seed: int = 15) -> Month:
    """The month; the same for the same seed."""
    sent = [sent_by(vehicle, seed) for vehicle in VEHICLES]
    everything = [delivery for _, deliveries in sent for delivery in deliveries]
    early = _between(everything, _april(1, 2000), _april(5), seed)
    late = _between(everything, _april(5), _april(30), seed)
    (tenant, device), _, _ = SILENT
    decision = Decide(_april(7), tenant, device, _april(1), "C. Lerk", "van in the workshop, box without power")
    half = len(early) // 2
    steps: tuple[Step, ...] = (
        Publish(datetime(2026, 2, 27, tzinfo=UTC), contracts_at_first(), fences_at_first()),
        Deliver(datetime(2026, 3, 14, tzinfo=UTC), early[:half]),
        Publish(datetime(2026, 3, 14, 12, tzinfo=UTC), tariff_published("0.47")),
        Publish(datetime(2026, 3, 14, 13, tzinfo=UTC), fences=fence_moved("eu-harbour", NEW_HARBOUR, 0.004)),
        Deliver(_april(5), early[half:]),
        Close(_april(6)),
        decision,
        Issue(_april(8)),
        Adjust(_april(9)),
        Deliver(_april(20, hour=12), late),
        Adjust(_april(21)),
        Publish(_april(22), tariff_published("0.44")),
        Adjust(_april(22, hour=12)),
        Publish(_april(23), fences=fence_moved("eu-bend", NEW_BEND, -0.015)),
        Adjust(_april(23, hour=12)),
        Publish(_april(24), rate_published("149.91")),
        # Everything once more, which is known already.
        Deliver(_april(24, hour=6), late[::-1]),
        Adjust(_april(24, hour=12)),
        Adjust(_april(25)),
    )
    return Month(tuple(journal for journal, _ in sent), steps)


def _between(everything: list[ArrivedBatch], begin: datetime, end: datetime, seed: int) -> tuple[ArrivedBatch, ...]:
    return tuple(shuffled([one for one in everything if begin <= one.received_at < end], seed))


def _april(day: int, year: int = 2026, hour: int = 0) -> datetime:
    return datetime(year, 4, day, hour, tzinfo=UTC)
