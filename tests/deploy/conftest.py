"""What every test of the local stack's commands must leave as it was."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_handler_stays() -> Iterator[None]:
    """Commands that start servers handle signals; run in this process, they leave none of that behind."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in signals]
    yield
    assert [signal.getsignal(number) for number in signals] == before
