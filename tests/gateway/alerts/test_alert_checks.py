"""What the settings of an alert process need, and what it warns of."""

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from gateway.alerts.config import AlertSettings, EvaluationSettings, warnings
from gateway.alerts.evaluation import LiveEvents
from gateway.alerts.service import AlertService
from gateway.alerts.status import AlertsStatus, lag_of
from gateway.reference_follower import ReferenceFacts, ReferenceFollower
from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix, columns, live_rules
from tests.gateway.alerts.scripted_partition import NAME, RULES, ScriptedTopic, ServedPartition, messages_of, served
from tests.tokens import token_file
from waybill.settings import SettingsError, parse

TEXT = """
name = "eu-1"
region = "eu"
tenants = {tenants}
insecure = true

[pulsar]
service_url = "pulsar://127.0.0.1:6650"
{more}

[fences]
unsigned = true
"""


def settings(more: str = "", tenants: str = '["acme"]') -> AlertSettings:
    return parse(AlertSettings, TEXT.format(more=more, tenants=tenants), "alerts.toml")


@pytest.mark.parametrize(("ends_in_s", "said"), [(-1.0, "ended at"), (3600.0, "was not renewed")])
def test_a_token_that_ended_or_ends_soon_is_a_warning(tmp_path: Path, ends_in_s: float, said: str) -> None:
    file = token_file(tmp_path, "alerts-eu", ends_in_s=ends_in_s)
    made = settings(f'access = {{ token_file = "{file}" }}')
    (found,) = [one for one in warnings(made, tmp_path / "alerts.toml", time.time()) if said in one]
    assert found.startswith("pulsar.access.token_file: token of alerts-eu")


@pytest.mark.parametrize(("ends_in_s", "said"), [(-1.0, "ended at"), (3600.0, "was not renewed")])
def test_a_process_says_that_its_token_ended_before_what_follows_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_in_s: float, said: str
) -> None:
    file = token_file(tmp_path, "alerts-eu", ends_in_s=ends_in_s)
    service = AlertService(settings(f'access = {{ token_file = "{file}" }}'))
    for other in ("", "fences are unknown"):
        monkeypatch.setattr(AlertService, "_problem", lambda *_, said=other: said)
        service._update(time.monotonic())
        assert not service._status.healthy
        # what is wrong anyhow comes before a token that is good for a while
        assert (said in service._status.last_error) == (not other or ends_in_s < 0)


LONG = 40


def settings_of_rewind_setting(rewind_s: float, more: str = "") -> AlertSettings:
    text = f"rewind_s = {rewind_s}\n" + TEXT.format(more="", tenants='["acme"]') + more
    return parse(AlertSettings, text, "alerts.toml")


@pytest.mark.parametrize(
    ("more", "longest_s", "needed_s"),
    [
        ("", 300, 900),
        ("[events]\ndwell_s = 3600", 3600, 4200),
        ("[events]\nmin_stay_s = 400", 400, 1000),
        ("[tracks]\nmax_gap_s = 60\n[events]\ndwell_s = 30", 30, 150),
        ("[tracks]\nmax_gap_s = 86400\n[events]\ndwell_s = 43200", 43_200, 216_000),
    ],
)
def test_a_rewind_that_is_too_short_is_refused_or_a_warning_with_what_is_needed(
    tmp_path: Path, more: str, longest_s: float, needed_s: float
) -> None:
    def warned(rewind_s: float) -> list[str]:
        found = warnings(settings_of_rewind_setting(rewind_s, more), tmp_path / "alerts.toml", 0.0)
        return [one for one in found if one.startswith("rewind_s: ")]

    for short_s in (0, longest_s - 1):
        with pytest.raises(SettingsError, match=rf"rewind_s is {short_s}: .* {needed_s} for devices"):
            settings_of_rewind_setting(short_s, more)
    assert warned(needed_s) == []
    for short_s in (longest_s, needed_s - 1):
        (said,) = warned(short_s)
        assert said.endswith(f"make it {needed_s}")


def stay(step_s: int) -> list[LiveFix]:
    places = [-0.002, 0.0005, *[0.0006] * LONG]
    return [LiveFix("bus-1", NOON + 1000 * step_s * at, at + 1, 0.0005, east) for at, east in enumerate(places)]


def raised(rewound: Sequence[LiveFix], rest: Sequence[LiveFix]) -> list[str]:
    live = LiveEvents(live_rules(), EvaluationSettings(max_age_s=86_400))
    live.take(columns(rewound), rest[-1].t_ms, report=False)
    return [one.id for one in live.take(columns(rest), rest[-1].t_ms, report=True)]


@pytest.mark.parametrize(
    "step_s", [pytest.param(5, marks=pytest.mark.nightly), pytest.param(50, marks=pytest.mark.nightly), 120]
)
def test_with_what_is_needed_a_takeover_raises_what_the_owner_before_would_have(step_s: int) -> None:
    by = live_rules()
    made = settings_of_rewind_setting(
        300, f"[tracks]\nmax_gap_s = {by.tracks.max_gap_s}\n[events]\ndwell_s = {by.events.dwell_s}"
    )
    assert made.rewind_needed_s == 300
    fixes = stay(step_s)
    found = []
    for at in range(2, LONG):
        rewound = [one for one in fixes[:at] if one.t_ms >= fixes[at].t_ms - 300_000]
        assert raised(rewound, fixes[at:]) == raised(fixes[:at], fixes[at:])
        short = [one for one in fixes[:at] if one.t_ms >= fixes[at].t_ms - 59_000]
        found.append(bool(short) and raised(short, fixes[at:]) != raised(fixes[:at], fixes[at:]))
    assert any(found) == (step_s < 60), "with less, a dwell is raised again"


def test_an_alert_process_takes_each_place_as_it_is_reported() -> None:
    with pytest.raises(SettingsError, match="every_fix"):
        settings_of_rewind_setting(900, '[tracks]\nrule = "standstill"')


@pytest.mark.parametrize(
    ("each", "said_s", "problem", "in_doubt"),
    [
        ((), None, False, False),
        ((0.0, 2.5), 2.5, False, False),
        ((31.0, 0.0), 31.0, True, False),
        ((2.5, None), None, False, True),
        ((31.0, None), 31.0, True, True),
        ((None,), None, False, True),
    ],
)
def test_of_a_process_the_largest_that_is_known_counts_and_what_is_not_known_is_in_doubt(
    each: Iterable[float | None], said_s: float | None, problem: bool, in_doubt: bool
) -> None:
    lag = lag_of((f"p{number}", one) for number, one in enumerate(each))
    assert (lag.said_s, bool(lag.problem), bool(lag.doubt)) == (said_s, problem, in_doubt)


def said_of(owned: ServedPartition, monkeypatch: pytest.MonkeyPatch) -> AlertsStatus:
    """What a process says that has this partition, and of which all else is well."""
    service = AlertService(settings())
    service._fences._made = RULES, None  # type: ignore[assignment]
    monkeypatch.setattr(ReferenceFollower, "reference_facts", ReferenceFacts(0, (), {}, "", None, ""))
    service._owner.problem = ""
    service._owner._held[NAME] = owned.owned, threading.current_thread()
    service._update(time.monotonic())
    return service._status


def partition(published_s_ago: float) -> ServedPartition:
    """One that has read a batch of then, and has not found that there is no other."""
    now_ms = round(time.time() * 1000)
    fix = LiveFix("bus-1", now_ms, 1, 0.0015, 0.0004)
    made = served(ScriptedTopic(messages_of([[fix]], now_ms - round(published_s_ago * 1000))), 0)
    made.owned.newest_ms = now_ms - round(published_s_ago * 1000)
    return made


def test_a_process_that_is_late_is_not_healthy_and_says_which_partition_and_how_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = said_of(partition(published_s_ago=600), monkeypatch)
    assert status.healthy is False
    assert status.last_error.startswith(f"{NAME}: batches are read 600 s after they were published")
    assert status.lag_s is not None
    assert status.lag_s >= 600
    status = said_of(partition(published_s_ago=1), monkeypatch)
    assert (status.healthy, status.last_error) == (True, "")


def test_how_late_it_is_is_unknown_while_nothing_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    made = partition(published_s_ago=1)
    made.owned.newest_ms = None
    assert made.owned.lag_s(time.time()) == 0.0
    made.consumer.is_connected = lambda: False  # type: ignore[method-assign]
    assert made.owned.lag_s(time.time()) is None
    status = said_of(made, monkeypatch)
    assert (status.healthy, status.lag_s) == (None, None)
    assert "not known" in status.last_error
