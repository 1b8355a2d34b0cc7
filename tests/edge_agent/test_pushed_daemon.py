"""What the daemon does with pushed settings, and what it says of them, while files, disk and device change."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from edge_agent.config import AgentSettings
from edge_agent.daemon import Daemon
from edge_agent.push.pushed import (
    AGAIN,
    FOREIGN,
    IN_FORCE,
    ON_TRIAL,
    REFUSED,
    PushedFiles,
    PushRefused,
    Trial,
    effective_settings,
)
from waybill.daemon.logs import BURST, LineLimit
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


def test_settings_in_force_that_no_longer_fit_are_said_to_be_passed_over(config: Path, daemon: Daemon) -> None:
    daemon._try_pushed(FOUR)
    end_well(daemon)
    config.write_text(config.read_text() + '[[classes]]\nname = "all"\ntopics = ["#"]\n')
    daemon._reload()
    assert daemon._state()["pushed_settings"] == "passed over"


def test_log_lines_that_were_suppressed_are_said_every_ten_seconds_and_before_a_reload(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = Daemon(config, load(AgentSettings, config), LineLimit(lambda: 0.0))

    def said_after(step: Callable[[], object], lines: int) -> list[object]:
        for _ in range(lines):
            structlog.get_logger("edge_agent").warning("refused")
        step()
        written = map(json.loads, capsys.readouterr().err.splitlines())
        return [line["kinds"] for line in written if line["event"] == "log lines suppressed"]

    now_s = time.monotonic()
    assert said_after(lambda: it._tick(now_s), int(BURST) + 5) == [{"warning refused": 5}]
    assert said_after(lambda: it._tick(now_s + 9), 3) == []
    assert said_after(lambda: it._tick(now_s + 10), 4) == [{"warning refused": 7}]
    assert said_after(it._reload, 2) == [{"warning refused": 2}]
    assert said_after(lambda: it._tick(now_s + 20), 1) == [{"warning refused": 1}], "a reload begins no new count"
    assert it._agent.stop(20)


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
    assert files(config) == {AGAIN}


def test_a_new_push_on_a_full_disk_is_refused_and_not_for_what_is_in_it(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk:
        disk.setattr(PushedFiles, "replace", no_room)
        daemon._try_pushed(b"[drain]\nwindow = 9\n")
        (answer,) = reports(daemon)
        assert (answer["outcome"], "nothing that is wrong with them" in answer["reason"]) == ("refused", True)
    daemon._try_pushed(b"[drain]\nwindow = 9\n")
    assert daemon._trial.is_on


def test_a_push_that_would_hold_back_what_flows_is_not_even_begun(config: Path, daemon: Daemon) -> None:
    agent = daemon._agent
    daemon._try_pushed(FOUR.replace(b'["#"]\n', b'["#", "x"]\nlinks = ["wifi"]\n'))
    assert daemon._agent is agent, "what comes meanwhile goes to its former class"
    (answer,) = reports(daemon)
    assert answer == {
        "outcome": "taken back",
        "reason": "they hold back what flowed before: vehicle/canary, vehicle/#; they will be tried again",
    }
    assert (files(config), daemon._evaluator) == ({AGAIN}, None)


def test_what_was_counted_is_counted_once_at_every_moment_of_a_reload(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon._agent.intake.counters.messages = 300
    seen: list[Any] = []
    make = daemon._new_agent

    def seen_while_made() -> Any:
        seen.append(daemon._state()["messages"])
        made = make()
        seen.append(daemon._state()["messages"])
        return made

    monkeypatch.setattr(daemon, "_new_agent", seen_while_made)
    daemon._reload()
    assert [*seen, daemon._state()["messages"]] == [300, 300, 300]


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
    assert (files(config), daemon._trial.is_waiting, reports(daemon)) == ({FOREIGN}, False, [])
    daemon._try_pushed(b"[drain]\nwindow = 8\n")
    assert daemon._state()["pushed_settings"] == "on trial", "what was proven elsewhere is proven here first"
    assert daemon._agent.stop(20)


def test_a_file_without_a_name_is_of_nobody(config: Path) -> None:
    for text in (b"[drain]\nwindow = 9\n", b"", b"\n", b"\xff\n"):
        (config.parent / "buffer" / IN_FORCE).write_bytes(text)
        assert effective_settings(config).settings.drain.window == 16
        (config.parent / "buffer" / ON_TRIAL).write_bytes(text)
        trial = Trial(config, load(AgentSettings, config))
        trial.archive_foreign()
        assert not (config.parent / "buffer" / ON_TRIAL).exists()
        assert not trial.recover()


def test_a_text_that_was_refused_elsewhere_is_judged_here(config: Path) -> None:
    trial = Trial(config, load(AgentSettings, config))
    with pytest.raises(PushRefused):
        trial.begin(b"nonsense")
    with pytest.raises(PushRefused, match="refused before"):
        trial.begin(b"nonsense")
    config.write_text(config.read_text().replace("eu-0001", "eu-0002"))
    with pytest.raises(PushRefused, match="TOML"):
        Trial(config, load(AgentSettings, config)).begin(b"nonsense")
