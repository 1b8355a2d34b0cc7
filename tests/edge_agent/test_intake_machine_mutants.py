"""The state machine of the agent sees what it is there to see: each defect, put in by hand, falls at its first course.

A course is a list of rules of the machine. Each passes with the code as it is.
"""

from collections.abc import Callable
from typing import Any

import pytest

from edge_agent.clocks import AgeClock
from edge_agent.drain.dispatcher import Dispatcher
from edge_agent.drain.sent_batches import SendWindow, SentSeqs
from edge_agent.intake.record_intake import Intake
from edge_agent.push import pushed
from edge_agent.push.pushed import Trial
from edge_agent.store import batch_rows, buffer, retention
from edge_agent.store import epochs as identity
from edge_agent.store.batch_rows import RedeliveryMatcher
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.store.epochs import resume_lineage
from tests.edge_agent.intake_machine import ELEVEN_YEARS_US, MAY_DELETE, WOULD_DELETE, IntakeMachine
from waybill.record import IntervalSet

Step = tuple[str, dict[str, Any]]
Change = Callable[[pytest.MonkeyPatch], None]

SMALL: Step = ("publish", {"count": 3, "size": 0})
LARGE: Step = ("publish", {"count": 8, "size": 20_000})
COMMIT: Step = ("commit", {})
ARRIVES: Step = ("send", {"arrives": True})
NEVER_ARRIVES: Step = ("send", {"arrives": False})
ACKNOWLEDGED: Step = ("acknowledge", {"share": 1.0})
IMAGE: Step = ("make_image", {})


def push(text: bytes, end: str) -> Step:
    return "push", {"text": text, "end": end, "busy": True}


def put_back(in_place: bool) -> Step:
    return "put_image_back", {"in_place": in_place}


def forge(first: int, more: int) -> Step:
    return "forge", {"back": 0, "first": first, "more": more}


def of_any_region(patch):
    def take_acked(self, region, epoch, seqs):
        sent = [ranges for (_, other), ids in self._sent.items() if other == epoch for ranges in ids.ranges]
        return IntervalSet(sent) & seqs

    patch.setattr(SentSeqs, "take_acked", take_acked)


def never_sent(patch):
    patch.setattr(SentSeqs, "take_acked", lambda _self, _region, _epoch, seqs: seqs)


def deleted_when_sent(patch):
    def take_next(self, now_s, allowed=None, real=Dispatcher.take_next):
        batch = real(self, now_s, allowed)
        if batch is not None:
            self._source.acknowledge(batch.epoch, batch.seqs)
        return batch

    patch.setattr(Dispatcher, "take_next", take_next)


def all_of_a_batch_acknowledged_in_part(patch):
    def trim(connection, row_id, class_index, _acknowledged, changes):
        row = connection.execute("SELECT last, records, size FROM batches WHERE id = ?", (row_id,)).fetchone()
        last, *before = row
        batch_rows.clear_batch(connection, row_id, last, changes)
        changes.count_removed(class_index, *before)

    patch.setattr(batch_rows, "_trim", trim)


def redelivery_is_new(patch):
    patch.setattr(Intake, "_match_redelivery", lambda *_: False)


def redelivery_without_dup_is_new(patch):
    patch.setattr(RedeliveryMatcher, "is_anchor", lambda *_: False)


def what_looks_alike_is_known(patch):
    patch.setattr(RedeliveryMatcher, "is_anchor", lambda *_: True)
    patch.setattr(RedeliveryMatcher, "try_advance", lambda *_: True)


def arrivals_are_forgotten_at_a_start(patch):
    patch.setattr(buffer, "stored_arrivals", lambda *_: iter(()))


def puback_before_the_commit(patch):
    def commit(self, now_s, real=Intake.commit):
        mids = real(self, now_s)
        return list(self._mids) if mids is None else mids

    patch.setattr(Intake, "commit", commit)


def epoch_kept(patch):
    patch.setattr(identity, "resume_lineage", lambda *_: True)


def machine_not_asked(patch):
    def is_the_one(connection, lineage, folder, _machine, real=resume_lineage):
        return real(connection, lineage, folder, lineage.machine if lineage else "")

    patch.setattr(identity, "resume_lineage", is_the_one)


def loss_undeclared(patch):
    def drop_batch(connection, row, _owner, _reason, changes):
        batch_rows.clear_batch(connection, row.id, row.last, changes)
        changes.count_removed(row.class_index, row.records, row.size)
        return row.size

    patch.setattr(retention, "drop_batch", drop_batch)


def what_was_sent_is_corrected(patch):
    patch.setattr(
        ClockCorrector,
        "correct",
        lambda self, jump, through, _sent, real=ClockCorrector.correct: real(self, jump, through, ()),
    )


def age_by_the_wall_clock(patch):
    patch.setattr(AgeClock, "advance", lambda _self, wall_ms, _monotonic_ms: wall_ms)


def trial_deletes(patch):
    patch.setattr(pushed, "with_present_retention", lambda _present, proposed: proposed)


def cut_short_is_in_force(patch):
    patch.setattr(Trial, "recover", lambda self: bool(self.is_on and (self.confirm(), True)))


def unanswered_is_not_sent_again(patch):
    patch.setattr(SendWindow, "take_overdue", lambda *_: [])
    patch.setattr(Dispatcher, "on_disconnected", lambda _: None)


MUTANTS: dict[Change, list[Step]] = {
    of_any_region: [("answer_for_another_region", {})],
    never_sent: [SMALL, COMMIT, forge(1, 100)],
    deleted_when_sent: [SMALL, COMMIT, NEVER_ARRIVES, ACKNOWLEDGED],
    all_of_a_batch_acknowledged_in_part: [SMALL, COMMIT, ARRIVES, forge(1, 0)],
    redelivery_is_new: [SMALL, ("deliver_again", {"dup": True}), COMMIT],
    redelivery_without_dup_is_new: [SMALL, ("deliver_again", {"dup": False}), COMMIT],
    what_looks_alike_is_known: [SMALL, ("kill", {"dup": False})],
    arrivals_are_forgotten_at_a_start: [SMALL, ("reload", {}), COMMIT],
    puback_before_the_commit: [SMALL, ("let_the_file_grow_no_more", {}), ("kill", {"dup": False})],
    epoch_kept: [SMALL, COMMIT, IMAGE, SMALL, COMMIT, ARRIVES, put_back(in_place=False), SMALL, COMMIT],
    machine_not_asked: [SMALL, ("clone", {})],
    loss_undeclared: [LARGE, COMMIT, ("fill_disk", {"capacity": 0})],
    what_was_sent_is_corrected: [
        SMALL,
        COMMIT,
        ARRIVES,
        ("jump", {"delta_us": 10_000_000}),
        ("connect", {"region": "us"}),
        ARRIVES,
    ],
    age_by_the_wall_clock: [SMALL, COMMIT, ("jump_for_one_tick", {"delta_us": ELEVEN_YEARS_US, "busy": False})],
    trial_deletes: [LARGE, COMMIT, push(WOULD_DELETE[1], "taken back")],
    cut_short_is_in_force: [LARGE, COMMIT, push(MAY_DELETE, "cut short"), LARGE, COMMIT],
    unanswered_is_not_sent_again: [SMALL, COMMIT, NEVER_ARRIVES],
}


def run_steps(course: list[Step]) -> None:
    machine = IntakeMachine()
    for rule, parameters in course:
        getattr(machine, rule)(**parameters)
        machine.every_id_has_its_place()
        machine.nothing_is_given_up_without_need()
    machine.teardown()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_defect_that_is_put_in_falls_at_once(mutant, monkeypatch):
    run_steps(MUTANTS[mutant])
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run_steps(MUTANTS[mutant])
