"""Whatever happens to a query and its clusters: each message is in the sink exactly once, or its loss was reported."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from cloud_jobs.pulsar_source.errors import (
    DataLoss,
)
from tests.cloud_jobs.pulsar_source.model_query import Crash
from tests.cloud_jobs.pulsar_source.source_machine import SourceMachine

_MANY = 2000


Step = tuple[str, dict[str, Any]]
WITHIN_A_READ = "something_happens_within_a_read"
SCENARIOS: dict[str, list[Step]] = {
    "a topic is empty when the query begins": [("produce", {"part": 0, "size": 1})],
    "somebody else acknowledges one of three entries, behind more gaps than are asked for one by one": [
        *[("mark", {"part": 0, "count": 1}), ("produce", {"part": 0, "size": 1})] * 3,
        ("somebody_else_acknowledges_one_entry", {"part": 0, "index": 3}),
    ],
    "what every client drops lies behind a last chunk whose message began in the batch before": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        ("run_query", {}),
        ("produce_a_next_chunk", {"index": 0}),
        ("produce_what_every_client_drops", {"part": 0}),
        ("produce", {"part": 0, "size": 1}),
    ],
    "a chunk of which the broker says nothing, and the cursor is moved over it and what follows": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
    ],
    "a message in chunks in two batches, which the end of the process, and the next cluster, divide": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        ("run_query", {"crash": "sink written"}),
        ("produce_a_first_chunk", {"part": 0, "of": 3}),
        ("produce_a_next_chunk", {"index": 0}),
        ("run_query", {"crash": "read"}),
        ("produce_a_next_chunk", {"index": 0}),
        ("run_query", {}),
        ("cursors_travel", {}),
        ("order", {"name": "dr"}),
        ("produce_a_next_chunk", {"index": 0}),
    ],
    "a skip that no checkpoint can know of": [
        ("both_are_down_for_an_hour", {}),
        ("produce", {"part": 0, "size": 1}),
        ("skip", {"count": 1, "part": 0}),
    ],
    "a skip beyond the query while the failover file is lost": [
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
        ("the_failover_file_is_lost_or_damaged", {"content": None}),
        ("produce", {"part": 0, "size": 1}),
        ("skip", {"count": 1, "part": 0}),
    ],
    "a batch that is removed as a whole before it is read": [
        ("order", {"name": "dr"}),
        ("a_transaction_begins", {"part": 0, "size": 1}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 1}),
        ("open_again_and_trim", {"name": "dr", "part": 1}),
    ],
    "the failover file is lost before the first batch, planned on the standby, is done": [
        ("a_transaction_begins", {"part": 0, "size": 1}),
        ("go_down", {"name": "hq"}),
        ("run_query", {}),
        ("both_are_down_for_an_hour", {}),
        ("the_failover_file_is_lost_or_damaged", {"content": None}),
        (WITHIN_A_READ, {"after": 0, "operation": "wipe", "part": 0}),
    ],
    "a transaction holds back what follows a chunk without a last one, and the cursor is moved over both": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        ("a_transaction_begins", {"part": 0, "size": 1}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
    ],
    "a transaction ends while what comes before it is read by a reader": [
        ("produce", {"part": 0, "size": 1}),
        ("a_transaction_begins", {"part": 0, "size": 1}),
        ("run_query", {}),
        ("skip", {"part": 0, "count": 9}),
        (WITHIN_A_READ, {"after": 0, "operation": "transactions end", "part": 0}),
    ],
    "the first batch never ends, a standby with empty disks is subscribed to anew, the cluster of the batch is lost": [
        ("a_transaction_begins", {"part": 0, "size": 1}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 1}),
        ("wipe", {"name": "dr"}),
        (WITHIN_A_READ, {"after": 0, "operation": "down", "part": 0}),
    ],
    "the process ends as soon as it has subscribed anew to a cluster with empty disks": [
        ("a_transaction_begins", {"part": 0, "size": 1}),
        ("run_query", {}),
        ("wipe", {"name": "dr"}),
        ("go_down", {"name": "hq"}),
        ("run_query", {"crash": "begun"}),
    ],
    "an order after the topic began another life at the same place": [
        ("delete_and_create", {"both": True, "part": 0}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
        ("go_down", {"name": "dr"}),
        (WITHIN_A_READ, {"after": 0, "operation": "wipe", "part": 1}),
        ("delete_and_create", {"both": False, "part": 0}),
        ("order", {"name": "dr"}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
    ],
}


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_lost_once_is_not_lost_again(scenario: str, compacted: bool) -> None:
    machine = SourceMachine()
    machine.begin(compacted=compacted)
    for step, arguments in SCENARIOS[scenario]:
        getattr(machine, step)(**arguments)
    machine.teardown()


def test_a_loss_is_reported_at_each_start_until_it_is_accepted_and_never_after_that():
    machine = SourceMachine()
    machine.begin()
    machine.produce(part=0, size=1)
    machine.run_query()
    machine.wipe("dr")
    machine.go_down("hq")
    for _ in range(2):
        machine.query.stop()
        with pytest.raises(DataLoss, match="nothing was kept for it"):
            machine.query.trigger()
    machine.query.stop()
    assert not machine.query.trigger(strict=False)
    machine.query.stop()
    assert not machine.query.trigger()
    machine.teardown()


def test_what_a_standby_lost_is_no_loss_once_the_query_has_read_all_that_its_own_cluster_has():
    machine = SourceMachine()
    machine.begin()
    machine.produce(part=0, size=1)
    with pytest.raises(Crash):
        machine.query.trigger("log written")
    machine.query.stop()
    machine.wipe("dr")
    assert [machine.query.trigger(), machine.query.trigger()] == [True, False]
    machine.query.stop()
    machine.go_down("hq")
    assert not machine.query.trigger()
    machine.teardown()
    assert list(machine.query.delivered()) == [0]


def test_the_chunks_of_a_message_that_is_not_whole_stay_stored_on_a_topic_that_is_known_for_them():
    machine = SourceMachine()
    machine.begin()
    for _ in range(2):
        machine.produce_a_first_chunk(part=0, of=2)
        machine.run_query()
        machine.run_query()
        machine.open_again_and_trim(part=0, name="hq")  # the first time nothing is known yet
        machine.produce_a_next_chunk(index=0)
        machine.run_query()
    machine.teardown()
    assert (machine.query.refused, list(machine.query.delivered())) == ({0}, [1])


def machine_of(examples: int) -> None:
    run_state_machine_as_test(
        SourceMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=examples < _MANY,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_each_message_is_in_the_sink_once_or_its_loss_is_reported():
    machine_of(20)


@pytest.mark.nightly
def test_each_message_is_in_the_sink_once_or_its_loss_is_reported_in_many_more_scenarios():
    machine_of(_MANY)
