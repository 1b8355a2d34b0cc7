"""Admin addresses for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.geo.replication.brokers import Broker


@pytest.fixture
def broker() -> Iterator[Callable[[str], Broker]]:
    started: list[Broker] = []

    def start(name: str) -> Broker:
        started.append(Broker(name))
        return started[-1]

    yield start
    for one in started:
        one.close()
