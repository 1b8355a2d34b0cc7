"""What the daemon does with pushed settings, and what it says of them, while files, disk and device change."""

import errno
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge_agent.agent import held_classes
from edge_agent.config import AgentSettings
from edge_agent.daemon import Daemon
from edge_agent.drain.link_budget import DataUsage
from edge_agent.push.pushed import IN_FORCE, REFUSED, PushedFiles, PushRefused, effective_settings
from edge_agent.push.trial import MAX_RETRY_S, VERSION_FILE, PushSignatures, RetryTimes, Trial, TrialEvaluator
from tests.edge_agent.makers import MINIMAL_FILE
from tests.identity.makers import operator, operators_file
from waybill.identity.signatures import sign_push
from waybill.settings import SettingsError, load, parse

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
    def evaluate(self, *_: object, **__: object) -> str:
        return "confirmed"


def reports(daemon: Daemon) -> list[dict[str, str]]:
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


NOW = datetime.now(UTC)
ANNA, ACME = operator("anna"), operator("acme clerk", tenants=("acme",))
BUS = "default/eu-0001"
SEVEN, EIGHT = b"[drain]\nwindow = 7\n", b"[drain]\nwindow = 8\n"


@pytest.fixture
def config_of_push_signature(tmp_path: Path) -> Path:
    (tmp_path / "buffer").mkdir()
    operators_file(tmp_path / "operators.toml", ANNA, ACME)
    file = tmp_path / "agent.toml"
    trusted = f'operators = "{tmp_path}/operators.toml"'
    file.write_text(FILE.format(folder=tmp_path / "buffer").replace("unsigned = true", trusted))
    return file


def opened(config: Path, text: bytes) -> bytes | str:
    try:
        return PushSignatures(load(AgentSettings, config)).open(text, NOW)
    except PushRefused as refused:
        return str(refused).partition(":")[0]


def signed(version: int, text: bytes = SEVEN) -> bytes:
    return sign_push(ANNA.key, BUS, version, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SEVEN, "unsigned"),
        (signed(5).replace(b"window = 7", b"window = 9"), "altered"),
        (sign_push(ANNA.key, "default/eu-0002", 5, SEVEN), "for-another"),
        (sign_push(ACME.key, BUS, 5, SEVEN), "no-right"),
        (sign_push(operator("other").key, BUS, 5, SEVEN), "unknown-key"),
    ],
)
def test_what_no_operator_signed_who_may_is_refused_with_the_reason(
    config_of_push_signature: Path, text: bytes, said: str
) -> None:
    assert opened(config_of_push_signature, text) == said
    assert not (config_of_push_signature.parent / "buffer" / VERSION_FILE).exists()


def test_nothing_older_than_the_newest_is_taken_also_after_a_restart(config_of_push_signature: Path) -> None:
    assert opened(config_of_push_signature, signed(5)) == SEVEN
    assert opened(config_of_push_signature, signed(5)) == SEVEN, "a retained push that comes again is known"
    assert opened(config_of_push_signature, signed(5, EIGHT)) == "older"
    assert opened(config_of_push_signature, signed(4, EIGHT)) == "older"
    assert opened(config_of_push_signature, signed(6, EIGHT)) == EIGHT
    assert opened(config_of_push_signature, signed(5)) == "older"


def test_what_was_noted_of_another_device_does_not_count_and_what_is_damaged_lets_nothing_in(
    config_of_push_signature: Path,
) -> None:
    file = config_of_push_signature.parent / "buffer" / VERSION_FILE
    file.write_text(json.dumps({"device": "default/eu-0002", "version": 9, "sha256": ""}))
    assert opened(config_of_push_signature, signed(5)) == SEVEN
    file.write_text("{")
    assert "is damaged" in str(refusal(config_of_push_signature, signed(6)))


def refusal(config: Path, text: bytes) -> PushRefused:
    with pytest.raises(PushRefused) as caught:
        PushSignatures(load(AgentSettings, config)).open(text, NOW)
    return caught.value


def test_a_device_that_trusts_nobody_takes_nothing_and_one_that_says_so_takes_everything(
    config_of_push_signature: Path,
) -> None:
    text = config_of_push_signature.read_text()
    line = next(one for one in text.splitlines() if one.startswith("operators"))
    config_of_push_signature.write_text(text.replace(line, ""))
    assert "trusts no operator's key" in str(refusal(config_of_push_signature, signed(5)))
    config_of_push_signature.write_text(text.replace(line, "unsigned = true"))
    assert opened(config_of_push_signature, SEVEN) == SEVEN
    config_of_push_signature.write_text(text.replace(line, f"{line}\nunsigned = true"))
    with pytest.raises(SettingsError, match="one of them"):
        load(AgentSettings, config_of_push_signature)


def test_the_daemon_answers_why_and_a_version_that_was_taken_back_stays_the_newest(
    config_of_push_signature: Path,
) -> None:
    daemon = Daemon(config_of_push_signature, load(AgentSettings, config_of_push_signature))
    daemon._try_pushed(SEVEN)
    answers = [json.loads(text) for text in daemon._agent.drainer.inbox.reports]
    daemon._try_pushed(signed(5))
    assert daemon._state()["pushed_settings"] == "on trial"
    daemon._take_back("a test", counts=False)
    daemon._try_pushed(signed(4, EIGHT))
    answers += [json.loads(text) for text in daemon._agent.drainer.inbox.reports]
    assert [(one["outcome"], one["reason"].partition(":")[0]) for one in answers] == [
        ("refused", "unsigned"),
        ("taken back", "a test; they will be tried again"),
        ("refused", "older"),
    ]
    assert daemon._agent.stop(20)


def settings_with(*classes: str, link: str = "") -> AgentSettings:
    text = (
        MINIMAL_FILE
        + (f'[link]\nlink = "{link}"\n' if link else "")
        + "".join(f"[[classes]]\n{one}\n" for one in classes)
    )
    return parse(AgentSettings, text, "x")


FREE, HELD = 'name = "other"\ntopics = ["#"]', 'name = "other"\ntopics = ["#"]\nlinks = ["satellite"]'
URGENT = 'name = "urgent"\ntopics = ["vehicle/event"]\nurgent = true'


def test_a_class_is_held_back_by_its_link_or_by_a_plan_that_is_spent() -> None:
    before = settings_with(URGENT, FREE)
    assert held_classes(before, DataUsage()) == {}
    assert held_classes(settings_with(URGENT, HELD), DataUsage()) == {"other": "link"}
    assert held_classes(settings_with(URGENT, HELD, link="satellite"), DataUsage()) == {}
    after = parse(AgentSettings, MINIMAL_FILE + "[link]\nbytes_per_day = 1000000\n", "x")
    assert held_classes(after, DataUsage().add(0.0, 950_000)) == {"position": "plan", "signal": "plan", "other": "plan"}


def judged(looks: list[tuple[float, bool, bool, bool, int]]) -> str:
    judge, verdict = TrialEvaluator(0.0, 60.0), "running"
    for now_s, connected, acked, well, batches in looks:
        verdict = judge.evaluate(now_s, is_connected=connected, is_acked=acked, is_well=well, batches=batches)
    return verdict


def test_a_connection_without_an_acknowledgement_never_confirms() -> None:
    assert judged([(now_s, True, False, True, 5) for now_s in range(60)]) == "running"
    assert judged([(60.0, True, False, True, 5)]) == "failed"
    assert judged([(60.0, False, False, False, 0)]) == "failed"


def test_an_acknowledgement_and_a_quarter_of_the_time_without_an_error_confirm() -> None:
    assert judged([(10.0, True, True, True, 5), (24.0, True, True, True, 5)]) == "running"
    assert judged([(10.0, True, True, True, 5), (25.0, True, True, True, 5)]) == "confirmed"
    assert judged([(10.0, True, True, True, 5), (20.0, True, True, False, 5), (26.0, True, True, True, 5)]) == "running"


def test_a_trial_with_nothing_to_send_says_nothing() -> None:
    assert judged([(30.0, True, False, True, 0), (60.0, True, False, True, 0)]) == "nothing to send"


def test_tries_are_further_and_further_apart() -> None:
    times = RetryTimes(600)
    due = []
    for _ in range(10):
        times.schedule_next(0.0)
        due.append(times.due_s)
    assert due[:3] == [600, 1200, 2400]
    assert due[-1] == MAX_RETRY_S
