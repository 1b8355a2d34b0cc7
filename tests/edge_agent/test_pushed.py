"""Pushed settings are a proposal: signed, bounded, and kept only after an acknowledgement; they delete nothing."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge_agent.device_runner import DeviceRunner
from edge_agent.devices import load_devices
from edge_agent.push.pushed import PushRefused
from edge_agent.push.trial import RECORD_FILE, PushTrial, TrialEvaluator
from tests.identity.makers import operator, operators_file
from waybill.identity.signatures import sign_push

FILE = """
insecure = true
[device]
id = "eu-0001"
[intake]
port = 1
[status]
port = 0
[buffer]
path = "{folder}"
[push]
operators = "{folder}/operators.toml"
[[uplinks]]
region = "eu"
host = "mqtt.eu.example"
port = 8883
username = "u"
password_file = "/etc/edge-agent/password"
[uplinks.tls]
ca = "/etc/edge-agent/ca.pem"
[[uplinks]]
region = "open"
host = "mqtt.open.example"
username = "v"
password_file = "/etc/edge-agent/other"
"""
NOW = datetime.now(UTC)
ANNA, ACME = operator("anna"), operator("acme clerk", tenants=("acme",))
BUS = "default/eu-0001"
SEVEN, EIGHT = "[drain]\nwindow = 7\n", "[drain]\nwindow = 8\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "agent.toml"
    file.write_text(FILE.format(folder=tmp_path))
    operators_file(tmp_path / "operators.toml", ANNA, ACME)
    return file


def signed(version: int, text: str | bytes = SEVEN) -> bytes:
    return sign_push(ANNA.key, BUS, version, text if isinstance(text, bytes) else text.encode())


def trial_of(config: Path, boot: str = "boot") -> PushTrial:
    (device,) = load_devices(config)
    return PushTrial(device.tables, device.settings, boot)


def window(trial: PushTrial) -> int:
    return trial.effective().settings.drain.window


def refusal(config: Path, text: str | bytes, version: int = 1) -> str:
    with pytest.raises(PushRefused) as caught:
        trial_of(config).begin(signed(version, text), NOW)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a=" + "[" * 15_000,
        "a=" + "{a=" * 5_000,
        ".".join("a" * 7_500) + " = 1",
        "[" + ".".join("a" * 7_500) + "]",
        'a=["""""""",' + '["""""""",' * 1_500,
        "[link]\nbytes_per_s = 0x" + "f" * 15_000,
        "[link]\nbytes_per_s = " + "9" * 15_000,
        "[drain]\nack_timeout_s = nan",
        "drain = 5",
        "uplinks = 5",
        "uplinks = []",
        "uplinks = [5]",
        'uplinks = [{region = "eu"}, 5]',
        'uplinks = {region = "eu"}',
        "uplinks = [{region = {a = 1}}]",
        "buffer = [{commit_records = 1}]",
        '"' * 15_001,
        "x = 1\n" * 2_500,
        b"\xff",
    ],
    ids=range(19),
)
def test_whatever_is_pushed_is_refused_once_with_a_reason_of_bounded_length(config: Path, text: str | bytes) -> None:
    assert len(refusal(config, text)) <= 600
    assert not trial_of(config).is_on
    assert not trial_of(config).begin(signed(1, text), NOW), "it is known when it is delivered again"


@pytest.mark.parametrize(
    "text",
    [
        "[buffer]\nmax_bytes = 65536\n",
        "[buffer]\nmax_age_s = 60\n",
        "[buffer]\nfree_space_floor_bytes = 1000000000000\n",
        '[[classes]]\nname="position"\ntopics=["p"]\nmax_bytes=5000\n',
    ],
)
def test_nothing_stored_is_deleted_because_of_a_push(config: Path, text: str) -> None:
    assert "cannot be pushed" in refusal(config, text)


@pytest.mark.parametrize(
    "text",
    [
        "[link]\nbytes_per_day = 1000\n",
        "[link]\nbytes_per_s = 100\n",
        "[link]\nplan_reserve = 0.99\n",
        "[link]\nlink = 'satellite'\n",
        "[link]\nlink_file = '/etc/shadow'\n",
        "[drain]\nack_timeout_s = 31536000\n",
        "[failover]\nafter_s = 31536000\n",
        "[push]\nconfirm_s = 1\n",
        "[status]\nport = 1\n",
        "[intake]\nhost = 'x'\n",
        "[buffer]\npath = '/x'\n",
        "[time]\ngrace_s = 1\n",
    ],
)
def test_what_could_silence_a_device_or_reach_its_files_is_refused(config: Path, text: str) -> None:
    refusal(config, text)


def test_a_pushed_uplink_keeps_its_certificates_and_password(config: Path) -> None:
    trial = trial_of(config)
    text = '[[uplinks]]\nregion = "eu"\nhost = "new.example"\n[[uplinks]]\nregion = "asia"\nhost = "a"\n'
    assert trial.begin(signed(1, text), NOW)
    for one in trial.effective().settings.uplinks:
        assert one.tls is not None
        assert (str(one.tls.ca), str(one.password_file)) == ("/etc/edge-agent/ca.pem", "/etc/edge-agent/password")


@pytest.mark.parametrize(
    "line", ["password_file = '/etc/shadow'", "username = 'root'", "tls = {ca = '/tmp/evil.pem'}", "kind = 'other'"]
)
def test_a_pushed_uplink_names_no_other_files_or_users(config: Path, line: str) -> None:
    refusal(config, f'[[uplinks]]\nregion = "eu"\nhost = "x"\n{line}\n')


def test_a_password_is_not_sent_to_another_address_in_plain_text(config: Path) -> None:
    assert "plain text" in refusal(config, '[[uplinks]]\nregion = "open"\nhost = "evil.example"\n')


def test_a_push_overrides_the_file_until_it_is_taken_back_and_for_good_once_confirmed(config: Path) -> None:
    trial = trial_of(config)
    assert trial.begin(signed(1), NOW)
    assert (window(trial), trial.effective().pushed) == (7, "on trial")
    assert trial.try_confirm()
    assert not trial.begin(signed(1), NOW), "it is in force already"
    assert trial.begin(signed(2, EIGHT), NOW)
    assert window(trial) == 8
    trial.take_back()
    assert (window(trial), trial.effective().pushed) == (7, "in force")
    assert window(trial_of(config)) == 7
    assert trial.begin(signed(3, ""), NOW)
    assert trial.try_confirm()
    assert (window(trial), trial.effective().pushed) == (16, "none"), "an empty push restores the device's own settings"


def test_a_trial_that_the_ignition_cut_short_is_tried_again_however_often(config: Path) -> None:
    for boot in range(20):
        trial = trial_of(config, f"boot-{boot}")
        assert trial.recover() == (boot > 0)
        assert trial.begin(signed(1), NOW)
    assert trial.try_confirm()
    assert window(trial_of(config)) == 7


def test_a_trial_that_the_agent_alone_does_not_survive_is_given_up_after_three(config: Path) -> None:
    for _ in range(3):
        trial = trial_of(config)
        trial.recover()
        assert trial.begin(signed(1), NOW)
    trial = trial_of(config)
    assert trial.recover()
    assert not trial.begin(signed(1), NOW)
    assert window(trial) == 16
    assert trial.begin(signed(2), NOW), "signed again, it is tried again"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SEVEN.encode(), "unsigned"),
        (signed(5).replace(b"window = 7", b"window = 9"), "altered"),
        (sign_push(ANNA.key, "default/eu-0002", 5, SEVEN.encode()), "for-another"),
        (sign_push(ACME.key, BUS, 5, SEVEN.encode()), "no-right"),
        (sign_push(operator("other").key, BUS, 5, SEVEN.encode()), "unknown-key"),
    ],
)
def test_what_no_operator_signed_who_may_is_refused_with_the_reason(config: Path, text: bytes, said: str) -> None:
    with pytest.raises(PushRefused) as refused:
        trial_of(config).begin(text, NOW)
    assert str(refused.value).partition(":")[0] == said
    assert not (config.parent / RECORD_FILE).exists()


def test_nothing_older_than_the_newest_is_accepted_also_after_a_restart(config: Path) -> None:
    assert trial_of(config).begin(signed(5), NOW)
    assert "older: version 4" in refusal(config, SEVEN, 4)
    refusal(config, "drain = 5", 6)
    assert "older: version 5" in refusal(config, SEVEN, 5), "the newest version counts, whatever became of it"


def test_a_damaged_record_lets_nothing_in_and_a_device_without_operators_trusts_nobody(config: Path) -> None:
    (config.parent / RECORD_FILE).write_text("{")
    assert "is damaged" in refusal(config, SEVEN, 6)
    (config.parent / RECORD_FILE).unlink()
    config.write_text(config.read_text().replace("operators = ", "# "))
    assert "trusts no operator's key" in refusal(config, SEVEN, 6)


def test_settings_that_were_pushed_to_another_device_are_not_in_force(config: Path) -> None:
    trial = trial_of(config)
    assert trial.begin(signed(1), NOW)
    assert trial.try_confirm()
    config.write_text(config.read_text().replace('"eu-0001"', '"eu-0002"'))
    assert (window(trial_of(config)), trial_of(config).effective().pushed) == (16, "none")


@pytest.fixture
def runner(config: Path) -> Iterator[DeviceRunner]:
    (device,) = load_devices(config)
    runner = DeviceRunner(device, lambda: None)
    runner.open()
    yield runner
    runner.close(20)


class Sure:
    def evaluate(self, *_: object, **__: object) -> str:
        return "confirmed"


def reports(runner: DeviceRunner) -> list[tuple[str, str]]:
    answers = [json.loads(text) for text in runner.agent.drainer.inbox.reports]
    return [(one["outcome"], one["reason"].partition(":")[0]) for one in answers]


def test_settings_that_the_agent_runs_with_to_the_end_of_the_trial_are_applied(runner: DeviceRunner) -> None:
    runner._try_pushed(signed(1))
    assert runner.state()["pushed_settings"] == "on trial"
    assert runner.agent.settings.drain.window == 7
    runner._evaluator = Sure()  # type: ignore[assignment]
    runner.tick(time.monotonic())
    assert (reports(runner), runner.state()["pushed_settings"]) == ([("applied", "")], "in force")


def test_a_trial_without_an_acknowledgement_is_taken_back_twice_and_then_refused(runner: DeviceRunner) -> None:
    for outcome in ("taken back", "taken back", "refused"):
        runner._try_pushed(signed(1))
        assert runner._evaluator is not None
        runner._evaluator = TrialEvaluator(0.0, 0.0)
        runner.tick(time.monotonic())
        assert reports(runner) == [(outcome, "no region acknowledged with them")]
        assert runner.agent.settings.drain.window == 16
    runner._try_pushed(signed(1))
    assert runner._evaluator is None


def test_the_daemon_answers_why_it_refuses(runner: DeviceRunner) -> None:
    runner._try_pushed(SEVEN.encode())
    assert reports(runner) == [("refused", "unsigned")]


def judged(*looks: tuple[float, bool, bool, bool]) -> str:
    judge, verdict = TrialEvaluator(0.0, 60.0), "running"
    for now_s, acked, well, idle in looks:
        verdict = judge.evaluate(now_s, is_acked=acked, is_well=well, is_idle=idle)
    return verdict


def test_only_an_acknowledgement_and_a_quarter_of_the_time_without_an_error_confirm() -> None:
    assert judged((10.0, True, True, False), (24.0, True, True, False)) == "running"
    assert judged((10.0, True, True, False), (25.0, True, True, False)) == "confirmed"
    assert judged((10.0, True, True, False), (20.0, True, False, False), (26.0, True, True, False)) == "running"
    assert judged((60.0, False, True, False)) == "failed"
    assert judged((60.0, False, True, True)) == "running", "with nothing to send a trial says nothing yet"
