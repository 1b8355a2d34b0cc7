"""Signals are handled while they are asked for, and afterwards by whom they were handled before."""

from __future__ import annotations

import ast
import signal
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from waybill.daemon.signals import handle_signals, raise_on_signals, stop_on_signals

ROOT = Path(__file__).resolve().parents[2]
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in ENDING]


@pytest.mark.parametrize(
    "handling",
    [
        lambda: handle_signals(ENDING, lambda number: pytest.fail(str(number))),
        stop_on_signals,
        lambda: raise_on_signals(ENDING, SystemExit(0)),
    ],
)
def test_the_former_handlers_are_back_afterwards_also_after_an_error(
    handling: Callable[[], AbstractContextManager[object]],
) -> None:
    before, inside = handlers(), list[object]()

    def fail_inside() -> None:
        with handling():
            inside.extend(handlers())
            raise LookupError

    with pytest.raises(LookupError):
        fail_inside()
    assert inside != before
    assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_also_after_another_library_took_it(number: signal.Signals) -> None:
    with (
        stop_on_signals() as stop,
        handle_signals((number,), lambda _: pytest.fail("it was taken back")),
        stop_on_signals(stop) as same,
    ):
        assert same is stop
        signal.raise_signal(number)
        assert stop.wait(10)


def test_the_first_signal_raises_and_one_that_comes_while_everything_is_stopped_does_nothing() -> None:
    stopped = []

    def run() -> None:
        with raise_on_signals(ENDING, SystemExit(0)):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                stopped.append("in order")

    with pytest.raises(SystemExit):
        run()
    assert stopped == ["in order"]


def test_no_other_module_sets_a_handler() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    setting = {
        str(path.relative_to(ROOT))
        for package in packages["root_packages"]
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "signal.signal"
    }
    assert setting == {"waybill/daemon/signals.py"}
