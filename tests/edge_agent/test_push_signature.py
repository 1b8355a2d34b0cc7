"""A device looks at what a trusted operator signed for it, and at nothing older than the newest it has taken."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge_agent.config import AgentSettings
from edge_agent.daemon import Daemon
from edge_agent.push.pushed import PushRefused
from edge_agent.push.trial import VERSION_FILE, PushSignatures
from tests.edge_agent.test_pushed_daemon import FILE
from tests.identity.operators import operator, operators_file
from waybill.identity.signatures import sign_push
from waybill.settings import SettingsError, load

NOW = datetime.now(UTC)
ANNA, ACME = operator("anna"), operator("acme clerk", tenants=("acme",))
BUS = "default/eu-0001"
SEVEN, EIGHT = b"[drain]\nwindow = 7\n", b"[drain]\nwindow = 8\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "buffer").mkdir()
    operators_file(tmp_path / "operators.toml", ANNA, ACME)
    file = tmp_path / "agent.toml"
    trusted = f'operators = "{tmp_path}/operators.toml"'
    file.write_text(FILE.format(folder=tmp_path / "buffer").replace("unsigned = true", trusted))
    return file


def opened(config: Path, text: bytes) -> bytes | str:
    """What a device that was just started makes of a push."""
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
def test_what_no_operator_signed_who_may_is_refused_with_the_reason(config: Path, text: bytes, said: str) -> None:
    assert opened(config, text) == said
    assert not (config.parent / "buffer" / VERSION_FILE).exists()


def test_nothing_older_than_the_newest_is_taken_also_after_a_restart(config: Path) -> None:
    assert opened(config, signed(5)) == SEVEN
    assert opened(config, signed(5)) == SEVEN, "a retained push that comes again is known"
    assert opened(config, signed(5, EIGHT)) == "older"
    assert opened(config, signed(4, EIGHT)) == "older"
    assert opened(config, signed(6, EIGHT)) == EIGHT
    assert opened(config, signed(5)) == "older"


def test_what_was_noted_of_another_device_does_not_count_and_what_is_damaged_lets_nothing_in(config: Path) -> None:
    file = config.parent / "buffer" / VERSION_FILE
    file.write_text(json.dumps({"device": "default/eu-0002", "version": 9, "sha256": ""}))
    assert opened(config, signed(5)) == SEVEN
    file.write_text("{")
    assert "is damaged" in str(refusal(config, signed(6)))


def refusal(config: Path, text: bytes) -> PushRefused:
    with pytest.raises(PushRefused) as caught:
        PushSignatures(load(AgentSettings, config)).open(text, NOW)
    return caught.value


def test_a_device_that_trusts_nobody_takes_nothing_and_one_that_says_so_takes_everything(config: Path) -> None:
    text = config.read_text()
    line = next(one for one in text.splitlines() if one.startswith("operators"))
    config.write_text(text.replace(line, ""))
    assert "trusts no operator's key" in str(refusal(config, signed(5)))
    config.write_text(text.replace(line, "unsigned = true"))
    assert opened(config, SEVEN) == SEVEN
    config.write_text(text.replace(line, f"{line}\nunsigned = true"))
    with pytest.raises(SettingsError, match="one of them"):
        load(AgentSettings, config)


def test_the_daemon_answers_why_and_a_version_that_was_taken_back_stays_the_newest(config: Path) -> None:
    daemon = Daemon(config, load(AgentSettings, config))
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
