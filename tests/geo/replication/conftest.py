"""Admin addresses for the tests of this folder."""

from collections.abc import Callable, Iterator

import pytest

from tests.geo.replication.brokers import FakeBroker


@pytest.fixture
def broker() -> Iterator[Callable[[str], FakeBroker]]:
    started: list[FakeBroker] = []

    def start(name: str) -> FakeBroker:
        started.append(FakeBroker(name))
        return started[-1]

    yield start
    for one in started:
        one.close()
