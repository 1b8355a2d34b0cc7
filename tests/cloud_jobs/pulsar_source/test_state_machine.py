"""Whatever happens to a query and its clusters: each message is in the sink exactly once, or its loss was reported."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from cloud_jobs.pulsar_source.options import DataLoss
from tests.cloud_jobs.pulsar_source.source_machine import SourceMachine

_MANY = 2000


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
