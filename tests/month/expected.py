"""The correct result of each step of the month, computed by the truth: which payers are final, and their documents."""

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from simulator.truth import (
    TrueContracts,
    TrueDocument,
    TrueLedger,
    TrueOwed,
    TrueQuarter,
    made_event,
    made_position,
    made_signal,
    position_of,
    quarters_of,
)
from tests.month.script import (
    PERIODS,
    Adjust,
    ArrivedBatch,
    Close,
    Decide,
    Deliver,
    DeviceJournal,
    Issue,
    Month,
    Publish,
)
from tests.truth.events import facts_of
from tests.truth.facts import TrueFacts, TruePassage, TrueVisit
from tests.truth.owed import owed_by
from tests.truth.usage import KnownRecord, TrueFences, quarters_used
from waybill.record import Event, Position, Record, Signal


class ExpectedBilling(NamedTuple):
    """The expected result of a billing step.

    `step`: its place in the script. `states`: of each billed device: complete, complete with declared loss, silent,
    open, closed by decision. `final`: payers that can be issued. `owed`: what each payer owes. `documents`: those that
    the step adds, in the order of the payers.
    """

    step: int
    states: dict[str, dict[tuple[str, str], str]]
    final: tuple[str, ...]
    owed: dict[str, TrueOwed]
    documents: tuple[TrueDocument, ...]


@dataclass
class _Known:
    """All that is known at a step."""

    contracts: list[str] = field(default_factory=list)
    fences: list[str] = field(default_factory=list)
    deliveries: list[ArrivedBatch] = field(default_factory=list)
    decisions: list[Decide] = field(default_factory=list)
    ledger: TrueLedger = field(default_factory=TrueLedger)
    metered: dict[object, tuple[list[TrueQuarter], TrueFacts]] = field(default_factory=dict)


def expected_billing(month: Month) -> list[ExpectedBilling]:
    """The expected results of the steps that close, issue or adjust, in order."""
    known, expected = _Known(), []
    for number, step in enumerate(month.steps):
        match step:
            case Publish():
                known.contracts += [step.contracts] if step.contracts else []
                known.fences += step.fences
            case Deliver():
                known.deliveries += step.deliveries
            case Decide():
                known.decisions.append(step)
            case _:
                expected.append(_bill(number, step, known, month.journals))
    return expected


def _bill(
    number: int, step: Close | Issue | Adjust, known: _Known, journals: tuple[DeviceJournal, ...]
) -> ExpectedBilling:
    contracts = TrueContracts.of_texts(*known.contracts)
    usage, facts = _used(known, journals)
    states = {payer: _states(contracts, payer, known) for payer in PERIODS}
    final = tuple(payer for payer, of in states.items() if not {"open", "silent"} & set(of.values()))
    owed = {payer: owed_by(contracts, payer, days, usage, facts) for payer, days in PERIODS.items()}
    documents: list[TrueDocument | None] = []
    for payer in final:
        if isinstance(step, Issue):
            documents.append(known.ledger.issue(owed[payer], PERIODS[payer]))
        elif isinstance(step, Adjust):
            documents.append(known.ledger.adjust(owed[payer], PERIODS[payer]))
    return ExpectedBilling(number, states, final, owed, tuple(one for one in documents if one is not None))


def _used(known: _Known, journals: tuple[DeviceJournal, ...]) -> tuple[list[TrueQuarter], TrueFacts]:
    """The usage, visits and passages of all received records, with the known fences."""
    arrived: dict[tuple[str, str], set[int]] = {}
    for delivery in known.deliveries:
        arrived.setdefault((delivery.tenant, delivery.device), set()).update(delivery.records)
    usage: list[TrueQuarter] = []
    visits: list[TrueVisit] = []
    passages: list[TruePassage] = []
    for journal in journals:
        seqs = sorted(arrived.get(journal.vehicle.key, set()) - journal.far_off)
        # Most devices have nothing new at most steps. Fences of other regions are far away.
        near = tuple(
            text for text in known.fences if json.loads(text)["properties"]["id"][:2] == journal.vehicle.region
        )
        key = journal.vehicle.key, tuple(seqs), near
        if key not in known.metered:
            records = [known_record(journal.records[seq - 1]) for seq in seqs]
            positions = [record.position for record in records if record.position is not None]
            of, fences = journal.vehicle.key, TrueFences(near)
            known.metered[key] = quarters_used(*of, records, fences), facts_of(*of, positions, fences)
        quarters, facts = known.metered[key]
        usage += quarters
        visits += facts.visits
        passages += facts.passages
    return usage, TrueFacts(tuple(visits), tuple(passages))


def known_record(record: Record) -> KnownRecord:
    time_us, body = record.device_time_us, record.body
    match body:
        case Position():
            made = made_position(time_us, **body.model_dump())
            return KnownRecord(made, position_of(made))
        case Event():
            return KnownRecord(made_event(time_us, body.name, body.attributes))
        case Signal():
            return KnownRecord(made_signal(time_us, body.path, body.value))
        case _:
            raise ValueError(f"the month has no {body!r}")


def _states(contracts: TrueContracts, payer: str, known: _Known) -> dict[tuple[str, str], str]:
    """The state of each device that the payer has at any moment of its period."""
    moments = [moment for moment, _ in quarters_of(PERIODS[payer])]
    begin, end = moments[0], moments[-1] + timedelta(minutes=15)
    states = {}
    for name in contracts.family(payer, PERIODS[payer]):
        account = contracts.account(name, moments[-1])
        for one in account.devices if account else ():
            if one.begin < end and (one.end is None or one.end > begin):
                states[one.tenant, one.device] = _state((one.tenant, one.device), end, known)
    return states


def _state(key: tuple[str, str], end: datetime, known: _Known) -> str:
    of_device = [one for one in known.deliveries if (one.tenant, one.device) == key]
    received = {seq for one in of_device for seq in one.records}
    lost = {seq for one in of_device for seq in one.lost} - received
    stated = max((one.stated for one in of_device), default=None)
    answered = any((one.tenant, one.device) == key and one.until >= end for one in known.decisions)
    missing = set(range(1, max((one.head for one in of_device), default=0) + 1)) - received - lost
    if missing or stated is None or stated < end:
        return "closed by decision" if answered else "open" if missing else "silent"
    return "complete with declared loss" if lost else "complete"
