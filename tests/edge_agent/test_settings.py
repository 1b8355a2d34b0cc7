"""Settings: wrong ones are named with the right word, pushed ones are tried, and everything is documented."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from edge_agent import status_endpoint as metrics
from edge_agent.cli import app
from edge_agent.config import AgentSettings
from edge_agent.push.pushed import IN_FORCE, ON_TRIAL, PushRefused, effective_settings
from edge_agent.push.trial import Trial
from waybill.settings import load

DOCS = Path(__file__).parents[2] / "docs/edge-agent.md"
MINIMAL = 'insecure = true\n[device]\nid = "eu-0001"\n[[uplinks]]\nregion = "eu"\nhost = "mqtt.example"\n'


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text(MINIMAL + f'[buffer]\npath = "{tmp_path}"\ncommit_delay_ms = 100\n')
    return file


def test_pushed_settings_are_laid_over_the_file_for_a_trial_and_kept_when_confirmed(config, tmp_path):
    trial = Trial(config, load(AgentSettings, config))
    assert trial.begin(b"[buffer]\ncommit_delay_ms = 777\n[drain]\nwindow = 9\n")
    settings = effective_settings(config).settings
    assert (settings.buffer.commit_delay_ms, settings.drain.window, settings.device.id) == (777, 9, "eu-0001")
    trial.confirm()
    assert not trial.is_on
    assert effective_settings(config).settings.drain.window == 9
    assert not trial.begin(b"[buffer]\ncommit_delay_ms = 777\n[drain]\nwindow = 9\n"), "it is in force already"


def test_pushed_settings_that_are_taken_back_leave_what_was_there(config, tmp_path):
    trial = Trial(config, load(AgentSettings, config))
    trial.begin(b"[drain]\nwindow = 9\n")
    trial.confirm()
    trial.begin(b"[drain]\nwindow = 3\n")
    assert effective_settings(config).settings.drain.window == 3
    assert trial.take_back()
    assert effective_settings(config).settings.drain.window == 9
    assert not trial.begin(b"[drain]\nwindow = 3\n"), "it waits to be tried again"
    assert not trial.take_back(), "nothing is on trial"
    assert trial.begin_again()
    assert trial.take_back()
    assert trial.begin_again()
    assert not trial.take_back(), "three trials were enough"
    assert not trial.begin_again()
    with pytest.raises(PushRefused, match="refused before: no region acknowledged"):
        trial.begin(b"[drain]\nwindow = 3\n")


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"[drain",
        b"[drain]\nwindow = 0\n",
        b"[device]\nid = 'x'\n",
        b"[buffer]\npath = '/tmp/x'\n",
        b"x" * 100_000,
    ],
)
def test_pushed_settings_that_are_wrong_or_reach_too_far_are_refused_and_change_nothing(config, tmp_path, text):
    with pytest.raises(PushRefused):
        Trial(config, load(AgentSettings, config)).begin(text)
    assert not (tmp_path / ON_TRIAL).exists()
    assert not (tmp_path / IN_FORCE).exists()


def keys(model):
    for name, field in model.model_fields.items():
        parts = [field.annotation, *get_args(field.annotation)]
        inner = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        yield from keys(inner[0]) if inner else [name]


def test_every_setting_metric_and_command_is_documented():
    text = DOCS.read_text(encoding="utf-8")
    names = set(keys(AgentSettings))
    names |= {name for name, _ in [*metrics.COUNTERS.values(), *metrics.GAUGES.values()]}
    stored = (metrics.STORED_COUNTERS, metrics.STORED_BY_REASON, metrics.STORED_GAUGES)
    names |= {name for group in stored for name, _ in group.values()}
    names |= {name for name, _ in (metrics.DEPTH, metrics.DEPTH_BYTES)}
    names |= {name for _, name, _ in metrics.LABELLED_COUNTERS.values()}
    names |= {one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands if one.callback}
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_every_counter_that_outlives_a_restart_is_a_metric():
    counted = re.compile(r'(?:counters\.add\(|\.counts\[)f?"([a-z_]+)')
    found = {
        name
        for path in (DOCS.parents[1] / "edge_agent").rglob("*.py")
        for name in counted.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 10
    shown_by_reason = tuple(metrics.STORED_BY_REASON)
    assert {name for name in found if not name.startswith(shown_by_reason)} <= metrics.STORED_COUNTERS.keys()
