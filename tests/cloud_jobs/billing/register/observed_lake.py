"""A lake that holds what vehicles said to their agents: read as an agent reads it, sent, ingested and metered."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner, Result

from edge_agent.intake.messages import Parsed, parse_message
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.billing.register.metered_lake import meter, publish, state
from tests.cloud_jobs.ingest.centre import new_ingest, take_in
from tests.system.lake_of_fixes import lake_of, square
from waybill.commands import SUBCOMMANDS, command_line
from waybill.record import Batch, Event, Record, encode

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
EAST = 1 / 500
"""So many degrees a minute is 222 m."""


class Said(NamedTuple):
    """A message of a vehicle, `minute` after TEN: when the agent took it in; or an event of the agent's own."""

    minute: float
    payload: bytes | Event
    topic: str = "vehicle/position"

    @property
    def moment(self) -> datetime:
        return TEN + timedelta(minutes=self.minute)


def fix(minute: float, longitude: float, **more: Any) -> Said:
    time_ms = round((TEN + timedelta(minutes=minute)).timestamp() * 1000)
    members = {"time": time_ms, "latitude": 0.005, "longitude": longitude, **more}
    return Said(minute, json.dumps(members).encode())


def drive(minutes: Iterable[int]) -> list[Said]:
    """Eastward along 0.005° North, a fix a minute."""
    return [fix(minute, minute * EAST) for minute in minutes]


def own_tracks(minutes: Iterable[int]) -> list[Said]:
    found = []
    for minute in minutes:
        members = {"_type": "location", "lat": 0.005, "lon": minute * EAST, "tst": round(TEN.timestamp()) + 60 * minute}
        found.append(Said(minute, json.dumps(members).encode()))
    return found


def observed_lake(
    folder: Path, *bodies: dict[str, Any], prices: Sequence[dict[str, Any]] = (), **pays: Any
) -> BilledLake:
    """Nobody has said anything yet; acme pays for `van` and `car`."""
    billed = BilledLake(lake_of(folder, bodies or [square("square", lon=0.055)]))
    usual = [price("1.00"), price("1.00", zone="*"), price("10.00", meter="entry", unit="each", zone="square")]
    vehicles = device("van", tenant="acme"), device("car", tenant="acme")
    publish(billed, legal_entity(), tariff(*(prices or usual)), account("acme", *vehicles, payer=payer(**pays)))
    return billed


def take(billed: BilledLake, said: Iterable[Said], name: str = "van", *, first: int = 1) -> int:
    """One commit of the ingest: what an agent makes of the messages, and that there is no more; then one run of usage.

    Returns the seq of the next record."""
    parsed = [(one, record) for one in said for record in _read(one)]
    records = tuple(
        Record(seq, record.device_time_us or round(one.moment.timestamp() * 1_000_000), record.body)
        for seq, (one, record) in enumerate(parsed, first)
    )
    head = first + len(records) - 1
    take_in(billed.lake, new_ingest(billed.lake), [("acme", encode(Batch(name, 7, head, records)))])
    state(billed.lake, name, count=head)
    meter(billed)
    return head + 1


def _read(said: Said) -> Sequence[Parsed]:
    if isinstance(said.payload, Event):
        return [Parsed(said.payload, None, "", b"")]
    return parse_message(said.topic, said.payload)


def run(billed: BilledLake, command: str, *words: str) -> Result:
    given = [command, *words, "--lake", str(billed.lake.location)]
    return CliRunner().invoke(command_line(SUBCOMMANDS, given, "Waybill."), given)


def close(billed: BilledLake, period: str = "2026-01") -> dict[str, Any]:
    result = run(billed, "bill", "close", "--period", period, "--json")
    (found,) = json.loads(result.stdout)
    assert result.exit_code == (0 if found["outcome"] == "final" else 3), result.output
    return dict(found)


def accept(billed: BilledLake, *words: str, name: str = "van", period: str = "2026-01") -> Result:
    asked = ["--device", f"acme/{name}", "--payer", "acme", "--period", period, "--by", "A. Clerk", "--reason", "known"]
    return run(billed, "decisions", "close-device", *asked, *words)


def compared(billed: BilledLake, period: str = "2026-01") -> tuple[str, list[dict[str, Any]]]:
    """The outcome of `reconcile`, and its comparisons."""
    found = json.loads(run(billed, "reconcile", "--period", period, "--json").stdout)
    return found["outcome"], found["comparisons"]
