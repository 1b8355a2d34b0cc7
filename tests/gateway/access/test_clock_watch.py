"""An access daemon whose clock is not the cluster's says so, and does not begin by it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.access.clock_watch import ClockWatch
from gateway.access.config import AccessSettings
from gateway.access.daemon import AccessDaemon
from tests.gateway.access.test_checks import made as _made
from tests.gateway.access.test_checks import settings
from tests.identity.registry_strategies import active
from waybill.identity.errors import IdentityError
from waybill.pulsar.cluster_clock import ClockDiffers, ClockUnknown
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import load

made = _made
URL = "https://pulsar.eu:8443"


class Clock:
    """What a comparison comes to."""

    def __init__(self) -> None:
        self.found: Exception | None = None

    def __call__(self, _: str, __: PulsarAccess) -> None:
        if self.found is not None:
            raise self.found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> ClockWatch:
    return ClockWatch(URL, PulsarAccess(), clock)


@pytest.mark.parametrize(("ahead_s", "said"), [(-420.0, "420 s behind"), (90.0, "90 s ahead of")])
def test_a_clock_that_is_off_is_a_problem_in_clear_words_until_it_is_right(
    clock: Clock, watch: ClockWatch, ahead_s: float, said: str
) -> None:
    clock.found = ClockDiffers(URL, ahead_s)
    watch.look()
    assert not watch.is_good
    assert f"this machine's clock is {said} that of {URL}" in watch.problem
    clock.found = ClockUnknown("away")
    watch.look()
    assert (watch.is_good, said in watch.problem) == (False, True), "nobody said that it is right"
    clock.found = None
    watch.look()
    assert (watch.is_good, watch.problem) == (True, "")


def test_a_cluster_that_does_not_say_is_a_problem_and_keeps_nobody_locked_in(clock: Clock, watch: ClockWatch) -> None:
    clock.found = ClockUnknown("the clock of x is not known: refused")
    watch.look()
    assert (watch.is_good, watch.problem) == (True, "the clock of x is not known: refused")


def test_no_certificate_is_signed_by_a_clock_that_is_not_known_to_be_right(made: Path, tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text(settings(made, tmp_path))
    enrolment = AccessDaemon(load(AccessSettings, tmp_path / "access.toml"))._enrolment
    assert enrolment is not None
    with pytest.raises(IdentityError, match="not compared"):
        enrolment._check(active(), datetime.now(UTC))
