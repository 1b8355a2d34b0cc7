"""A step on a broker: what one device does to it is done to no other."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from gateway.access.broker import BrokerFiles, SessionGuard, StepRunner
from gateway.access.core import BrokerStep, Confirmation
from gateway.access.publisher import AccessPublisher
from gateway.access.revocation import OwnList
from gateway.access.status import AccessMetrics
from gateway.errors import BrokerUnreachable, SessionNotEnded


def test_a_session_that_the_broker_does_not_end_holds_up_no_other_and_is_left_to_be_done_again() -> None:
    def end(name: str) -> None:
        if name == "acme/odd":
            raise SessionNotEnded("reason 0x85")

    guard, publisher = create_autospec(SessionGuard), create_autospec(AccessPublisher)
    guard.end.side_effect = end
    own = create_autospec(OwnList, current=None)
    runner = StepRunner(create_autospec(BrokerFiles), guard, publisher, AccessMetrics(), own_list=own)
    names = ("acme/odd", "acme/bus-1")
    confirm = tuple(Confirmation(name, name) for name in names)
    left = runner.run(BrokerStep(frozenset(names), {}, (), names, confirm))
    assert [call.args[0] for call in guard.end.call_args_list] == [*names, *names]
    assert left is not None
    assert (left.end, left.confirm) == (("acme/odd",), confirm[:1])
    publisher.confirm.assert_called_once()
    assert publisher.confirm.call_args.args[0] == [confirm[1]]


def test_a_session_ends_before_the_list_is_signed_and_read_and_once_more_behind_it() -> None:
    done: list[str] = []
    guard, files, own = (
        create_autospec(SessionGuard),
        create_autospec(BrokerFiles),
        create_autospec(OwnList, current=None),
    )
    guard.end.side_effect = lambda _: done.append("ended")
    own.update.side_effect = lambda *_: done.append("signed")
    files.reload.side_effect = lambda: done.append("reloaded")
    runner = StepRunner(files, guard, create_autospec(AccessPublisher), AccessMetrics(), own_list=own)
    assert runner.run(BrokerStep(frozenset({"acme/bus-1"}), {}, (), ("acme/bus-1",), ())) is None
    assert done == ["ended", "signed", "reloaded", "ended"]


def test_a_broker_that_is_away_finds_its_files_when_it_comes() -> None:
    guard, files, own = (
        create_autospec(SessionGuard),
        create_autospec(BrokerFiles),
        create_autospec(OwnList, current=None),
    )
    guard.end.side_effect = files.reload.side_effect = BrokerUnreachable("no socket")
    runner = StepRunner(files, guard, create_autospec(AccessPublisher), AccessMetrics(), own_list=own)
    with pytest.raises(BrokerUnreachable):
        runner.run(BrokerStep(frozenset({"acme/bus-1"}), {}, (), ("acme/bus-1",), ()))
    files.write_rules.assert_called_once()
    files.write_lists.assert_called_once()
