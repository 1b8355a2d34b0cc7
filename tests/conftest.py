"""Settings that hold for every test."""

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.examples import examples

# Speed is measured in benchmarks/, never in tests, so no law fails because the machine was busy. Continuous integration
# repeats the same examples for the same code; a developer's machine looks for new ones at every run.
settings.register_profile("waybill", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("waybill"), derandomize=True, max_examples=examples(100))
settings.load_profile("ci" if os.environ.get("CI") else "waybill")


@pytest.fixture(autouse=True)
def _logging_of_nobody() -> Iterator[None]:
    """A command that was run within the tests' process leaves its logging to no later test."""
    yield
    structlog.reset_defaults()
