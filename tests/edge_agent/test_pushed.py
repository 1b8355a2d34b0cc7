"""Pushed settings are a proposal: bounded, tried, proven by an acknowledgement; they neither delete nor silence."""

from pathlib import Path

import pytest

from edge_agent.config import AgentSettings
from edge_agent.daemon import Daemon
from edge_agent.push.pushed import IN_FORCE, ON_TRIAL, REFUSED, PushRefused, effective_settings
from edge_agent.push.trial import Trial
from waybill.settings import SettingsError, load

SECURE = """
insecure = true
[device]
id = "eu-0001"
[buffer]
path = "{folder}"
[[uplinks]]
region = "eu"
host = "mqtt.eu.example"
port = 8883
username = "u"
password_file = "/etc/edge-agent/password"
[uplinks.tls]
ca = "/etc/edge-agent/ca.pem"
[[uplinks]]
region = "us"
host = "mqtt.us.example"
[[uplinks]]
region = "open"
host = "mqtt.open.example"
username = "v"
password_file = "/etc/edge-agent/other"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "agent.toml"
    file.write_text(SECURE.format(folder=tmp_path))
    return file


def refusal(config: Path, text: str | bytes) -> str:
    with pytest.raises(PushRefused) as caught:
        Trial(config, load(AgentSettings, config)).begin(text if isinstance(text, bytes) else text.encode())
    assert not (config.parent / ON_TRIAL).exists()
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a=" + "[" * 15_000,
        "a=" + "{a=" * 5_000,
        ".".join("a" * 7_500) + " = 1",
        "[" + ".".join("a" * 7_500) + "]",
        'a=["""""""",' + '["""""""",' * 1_500,
        "a=['''''''','''''''',[" * 700,
        "[link]\nbytes_per_s = 0x" + "f" * 15_000,
        "[link]\nbytes_per_s = " + "9" * 15_000,
        "[drain]\nack_timeout_s = 0x" + "f" * 15_000,
        "[drain]\nack_timeout_s = nan",
        "drain = 5",
        "uplinks = 5",
        "uplinks = [5]",
        "uplinks = [{region = {a = 1}}]",
        "buffer = [{max_bytes = 1}]",
        "classes = [5]",
        '"' * 15_001,
        "x = 1\n" * 2_500,
    ],
    ids=range(18),
)
def test_whatever_is_pushed_is_refused_with_a_reason_of_bounded_length(config: Path, text: str) -> None:
    assert len(refusal(config, text)) <= 600


TIGHTER = [
    "[buffer]\nmax_bytes = 65536\n",
    "[buffer]\nmax_age_s = 60\n",
    "[buffer]\nfree_space_floor_bytes = 1000000000000\n",
    "[buffer]\ndownsample_above = 0.01\n",
    (
        '[[classes]]\nname="urgent"\ntopics=["e"]\n[[classes]]\nname="position"\ntopics=["p"]\nmax_bytes=5000\n'
        '[[classes]]\nname="signal"\ntopics=["s"]\n[[classes]]\nname="other"\ntopics=["#"]\n'
    ),
]


@pytest.mark.parametrize("text", TIGHTER, ids=range(len(TIGHTER)))
def test_nothing_stored_is_deleted_because_of_a_push_without_the_word_for_it(config: Path, text: str) -> None:
    assert "allow_deletion" in refusal(config, text)


@pytest.mark.parametrize("text", TIGHTER, ids=range(len(TIGHTER)))
def test_with_the_word_nothing_is_deleted_before_it_is_confirmed(config: Path, text: str) -> None:
    before = effective_settings(config).settings
    trial = Trial(config, load(AgentSettings, config))
    assert trial.begin(f"allow_deletion = true\n{text}".encode())
    during = effective_settings(config).settings
    assert during.buffer == before.buffer
    assert [(one.max_bytes, one.max_age_s) for one in during.classes] == [(None, None)] * 4
    trial.confirm()
    after = effective_settings(config).settings
    assert (after.buffer, after.classes) != (before.buffer, before.classes)


def test_more_room_needs_no_word_and_going_back_from_it_does(config: Path) -> None:
    trial = Trial(config, load(AgentSettings, config))
    assert trial.begin(b"[buffer]\nmax_bytes = 9000000000\n")
    trial.confirm()
    assert "allow_deletion" in refusal(config, "[drain]\nwindow = 9\n"), "it would shrink back to the file's"


@pytest.mark.parametrize(
    "text",
    [
        "[link]\nbytes_per_day = 1000\n",
        "[link]\nbytes_per_s = 100\n",
        "[link]\nplan_reserve = 0.99\n",
        "[link]\nlink_file = '/etc/shadow'\n",
        "[drain]\nack_timeout_s = 31536000\n",
        "[failover]\nafter_s = 31536000\n",
        "[push]\naccept = false\n",
        "[status]\nport = 1\n",
        "[intake]\nhost = 'x'\n",
        "[buffer]\npath = '/x'\n",
        '[[classes]]\nname = "all"\ntopics = ["#"]\n',
    ],
)
def test_what_could_silence_a_device_or_reach_its_files_is_refused(config: Path, text: str) -> None:
    refusal(config, text)


def test_a_pushed_uplink_keeps_its_certificates_and_password(config: Path) -> None:
    trial = Trial(config, load(AgentSettings, config))
    assert trial.begin(b'[[uplinks]]\nregion = "eu"\nhost = "new.example"\n[[uplinks]]\nregion = "asia"\nhost = "a"\n')
    for one in effective_settings(config).settings.uplinks:
        assert one.tls is not None
        assert (str(one.tls.ca), str(one.password_file)) == ("/etc/edge-agent/ca.pem", "/etc/edge-agent/password")


@pytest.mark.parametrize(
    "line",
    [
        "password_file = '/etc/shadow'",
        "username = 'root'",
        "tls = {ca = '/tmp/evil.pem'}",
        "kind = 'pulsar'\nservice_url = 'pulsar://evil:6650'\ntopic = 'x'",
    ],
)
def test_a_pushed_uplink_names_no_other_files_users_or_kinds(config: Path, line: str) -> None:
    refusal(config, f'[[uplinks]]\nregion = "eu"\nhost = "x"\n{line}\n')


def test_a_password_is_not_sent_to_another_address_in_plain_text(config: Path) -> None:
    assert "plain text" in refusal(config, '[[uplinks]]\nregion = "open"\nhost = "evil.example"\n')


def test_a_trial_that_the_ignition_cut_short_is_tried_again_however_often(config: Path) -> None:
    for boot in range(20):
        trial = Trial(config, load(AgentSettings, config), f"boot-{boot}")
        trial.recover()
        assert trial.begin(b"[drain]\nwindow = 9\n") or trial.begin_again()
        assert effective_settings(config).settings.drain.window == 9
    trial.confirm()
    assert (config.parent / IN_FORCE).exists()


def test_a_trial_that_the_agent_alone_does_not_survive_is_given_up_after_three(config: Path) -> None:
    Trial(config, load(AgentSettings, config), "boot").begin(b"[drain]\nwindow = 9\n")
    for is_given_up in (False, False, True):
        trial = Trial(config, load(AgentSettings, config), "boot")
        assert trial.recover()
        assert trial.begin_again() != is_given_up
    assert (config.parent / REFUSED).exists()
    assert effective_settings(config).settings.drain.window == 16


def test_a_push_of_what_is_in_force_calls_off_what_waits_to_be_tried_again(config: Path) -> None:
    trial = Trial(config, load(AgentSettings, config), "boot")
    trial.begin(b"[drain]\nwindow = 9\n")
    trial.confirm()
    trial.begin(b"[drain]\nwindow = 3\n")
    trial.take_back()
    assert not trial.begin(b"[drain]\nwindow = 9\n")
    assert trial.waiting is None


def test_a_refused_text_is_looked_at_again_when_the_devices_own_file_changed(config: Path) -> None:
    text = '[[uplinks]]\nregion = "open"\nhost = "other.example"\n'
    assert "plain text" in refusal(config, text)
    config.write_text(config.read_text().replace("/etc/edge-agent/other", "/etc/edge-agent/new"))
    assert "refused before" not in refusal(config, text)
    config.write_text(config.read_text().replace('username = "v"\npassword_file = "/etc/edge-agent/new"', ""))
    assert Trial(config, load(AgentSettings, config)).begin(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        'uplinks = {region = "eu"}',
        'uplinks = [{region = "eu"}, 5]',
        'uplinks = [["eu"]]',
        "uplinks = 5",
        "uplinks = []",
        "allow_deletion = 1",
        "[allow_deletion]\nx = 1",
        "allow_deletion = [true]",
        "drain = 5",
        "classes = [5]",
    ],
)
def test_a_push_of_another_shape_is_refused_in_words_and_remembered(config: Path, text: str) -> None:
    assert refusal(config, text)
    assert (config.parent / REFUSED).read_text().endswith(text)
    assert "refused before" in refusal(config, text)


def test_a_change_of_path_or_device_waits_for_a_restart_and_no_push_is_tried_until_then(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    text = SECURE.format(folder=tmp_path / "old") + "[status]\nport = 0\n[push]\nunsigned = true\n"
    config.write_text(text)
    daemon = Daemon(config, load(AgentSettings, config))
    agent = daemon._agent
    of_another_tenant = text.replace("[device]\n", '[device]\ntenant = "zeta"\n')
    assert of_another_tenant != text
    for changed in (text.replace("/old", "/new"), text.replace("eu-0001", "eu-0002"), of_another_tenant, "[device"):
        config.write_text(changed)
        daemon._reload()
        daemon._restart()
        daemon._try_pushed(b'log.level = "debug"')
        assert daemon._agent is agent
        assert not (tmp_path / "new").exists()
        assert not list((tmp_path / "old").glob("pushed*")), "neither tried nor refused for good"
    config.write_text(text.replace("/old", "/new"))
    with pytest.raises(SettingsError, match="needs a restart"):
        daemon._settings()
    agent.buffer.close()
