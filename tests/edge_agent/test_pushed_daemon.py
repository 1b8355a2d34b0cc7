"""What the daemon does with pushed settings, and what it says of them, while files, disk and device change."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.config import AgentSettings
from edge_agent.daemon import Daemon
from edge_agent.push.pushed import IN_FORCE, REFUSED, PushedFiles, effective_settings
from edge_agent.push.trial import Trial
from waybill.settings import load

FILE = """
[device]
id = "eu-0001"
[intake]
port = 1
[status]
port = 0
[link]
link = "cellular"
[push]
unsigned = true
[buffer]
path = "{folder}"
[[uplinks]]
region = "eu"
host = "127.0.0.1"
port = 1
"""
FOUR = "".join(
    f'[[classes]]\nname = "{name}"\ntopics = ["{topic}"]\n'
    for name, topic in (
        ("urgent", 'vehicle/event", "vehicle/+/event'),
        ("position", 'vehicle/position", "vehicle/+/position'),
        ("signal", 'vehicle/signal", "vehicle/+/signal'),
        ("other", "#"),
    )
).encode()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "agent.toml"
    file.write_text(FILE.format(folder=tmp_path / "buffer"))
    (tmp_path / "buffer").mkdir()
    return file


@pytest.fixture
def daemon(config: Path) -> Iterator[Daemon]:
    it = Daemon(config, load(AgentSettings, config))
    yield it
    assert it._agent.stop(20)


class Sure:
    """A trial that has gone well."""

    def evaluate(self, *_: object, **__: object) -> str:
        return "confirmed"


def reports(daemon: Daemon) -> list[dict[str, str]]:
    """What waits to be reported to the region."""
    return [json.loads(text) for text in daemon._agent.drainer.inbox.reports]


def end_well(daemon: Daemon) -> None:
    daemon._evaluator = Sure()  # type: ignore[assignment]
    daemon._tick(time.monotonic())


def files(config: Path) -> set[str]:
    return {one.name for one in (config.parent / "buffer").glob("pushed*.toml")}


def test_settings_that_the_agent_runs_with_to_the_end_of_the_trial_are_applied(config: Path, daemon: Daemon) -> None:
    daemon._try_pushed(FOUR)
    assert daemon._state()["pushed_settings"] == "on trial"
    end_well(daemon)
    assert [one["outcome"] for one in reports(daemon)] == ["applied"]
    assert (files(config), daemon._state()["pushed_settings"]) == ({IN_FORCE}, "in force")


@pytest.mark.parametrize("is_reloaded", [True, False])
def test_settings_that_no_longer_fit_the_devices_own_file_are_never_called_applied(
    config: Path, daemon: Daemon, is_reloaded: bool
) -> None:
    daemon._try_pushed(FOUR)
    config.write_text(config.read_text() + '[[classes]]\nname = "all"\ntopics = ["#"]\n')
    if is_reloaded:
        daemon._reload()
    end_well(daemon)
    (answer,) = reports(daemon)
    assert (answer["outcome"], "classes" in answer["reason"]) == ("refused", True)
    assert (files(config), daemon._state()["pushed_settings"]) == ({REFUSED}, "none")
    assert [one.name for one in daemon._agent.settings.classes] == ["all"]
    daemon._tick(time.monotonic())
    assert daemon._evaluator is None


def waiting(daemon: Daemon) -> Daemon:
    """With a proposal that is to be tried again, and that was reported."""
    daemon._try_pushed(b"[drain]\nwindow = 9\n")
    daemon._take_back("it was tested", counts=False)
    assert [one["outcome"] for one in reports(daemon)] == ["taken back"]
    return daemon


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("obstacle", ["typo", "full disk"])
def test_a_proposal_that_waits_and_cannot_be_tried_is_reported_once_and_tried_ever_more_seldom(
    config: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    waiting(daemon)
    if obstacle == "typo":
        config.write_text(config.read_text().replace("[intake]", "[intaken]"))
    else:
        monkeypatch.setattr(PushedFiles, "replace", no_room)
    tries = []
    for _ in range(5):
        daemon._retries.due_s = time.monotonic()
        daemon._tick(time.monotonic())
        tries.append(round(daemon._retries.due_s - time.monotonic(), -2))
    assert tries == [1200, 2400, 4800, 9600, 19200]
    assert len(reports(daemon)) == 1, "nothing was refused, and that it waits was said"
    assert (files(config), daemon._trial.waiting) == (set(), b"[drain]\nwindow = 9\n")


@pytest.mark.parametrize("who", ["device", "tenant", "machine"])
def test_settings_that_were_pushed_to_another_device_or_machine_are_not_in_force(
    config: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    trial = Trial(config, load(AgentSettings, config))
    for text in (b"[drain]\nwindow = 9\n", b"[drain]\nwindow = 8\n"):
        trial.begin(text)
        trial.confirm()
    assert effective_settings(config).settings.drain.window == 8
    trial.begin(b"[drain]\nwindow = 7\n")
    if who == "machine":
        monkeypatch.setattr("edge_agent.push.pushed.machine_id", lambda: "another")
    else:
        line = {"device": 'id = "eu-0002"', "tenant": 'id = "eu-0001"\ntenant = "other"'}[who]
        config.write_text(config.read_text().replace('id = "eu-0001"', line))
    assert (effective_settings(config).settings.drain.window, effective_settings(config).pushed) == (16, "none")
    daemon = Daemon(config, load(AgentSettings, config))
    assert (daemon._trial.is_on, daemon._trial.waiting, reports(daemon)) == (False, None, [])
    daemon._try_pushed(b"[drain]\nwindow = 8\n")
    assert daemon._state()["pushed_settings"] == "on trial", "what was proven elsewhere is proven here first"
    assert daemon._agent.stop(20)
