"""What people see of alerts as they come: from when, and what each column says."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from gateway.webhooks import cli
from gateway.webhooks import tail as tail_lines
from gateway.webhooks.intake import AlertTopic
from gateway.webhooks.tail import HEADER, SeenAlert, TailFilter, json_line, table_line, tail
from geo.alerts import Alert, AlertVerdict, FinalEvent, VerdictKind, encode_alert
from tests.gateway.webhooks.test_config import TEXT
from tests.gateway.webhooks.test_routes import T0, alert

NOON_MS = round(datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp() * 1000)
ALERT = Alert(
    id="0" * 24, tenant="acme", device="bus-1", region="eu", epoch=1, seq=2, kind="enter", place="depot",
    t_ms=NOON_MS, received_ms=NOON_MS + 700, raised_ms=NOON_MS + 800,
)  # fmt: skip
EVENT = FinalEvent(kind="enter", place="depot", t_ms=NOON_MS, epoch=1, seq=2)
TOPICS = [AlertTopic(f"persistent://acme/alerts-{region}/alerts", "acme", is_verdicts=False) for region in ("eu", "us")]


def verdict(**more: Any) -> AlertVerdict:
    facts: dict[str, Any] = {"verdict": VerdictKind.CONFIRMED, "event": EVENT, "decided_ms": NOON_MS + 4_500}
    return AlertVerdict(id="0" * 24, revision=0, tenant="acme", device="bus-1", **facts | more)


def columns(said: Alert | AlertVerdict, read_ms: int) -> dict[str, str]:
    line, at, found = table_line(SeenAlert(said, read_ms)).plain, 0, {}
    for width in tail_lines._WIDTHS:
        found[HEADER[at : at + width].strip()] = line[at : at + width].strip()
        at += width + 1
    return found


def test_each_time_stands_below_its_own_name() -> None:
    found = columns(ALERT, NOON_MS + 850)
    assert (found["device time"], found["state"]) == ("12:00:00.000", "provisional")
    assert [found[name] for name in ("seen", "raised", "decided", "here")] == ["+0.70 s", "+0.10 s", "", "+0.05 s"]
    found = columns(verdict(), NOON_MS + 4_600)
    assert [found[name] for name in ("seen", "raised", "decided", "here")] == ["", "", "+4.50 s", "+0.10 s"]


class ScriptedClient:
    """Gives readers, until the topic that is `missing`; what comes is published when `say` is called."""

    def __init__(self, missing: str = "") -> None:
        self.missing, self.listeners = missing, dict[str, Any]()

    def create_reader(self, name: str, _: Any, reader_listener: Any) -> None:
        if name == self.missing:
            raise pulsar.TopicNotFound("TopicNotFound")
        self.listeners[name] = reader_listener

    def say(self, name: str, data: bytes) -> None:
        self.listeners[name](None, SimpleNamespace(data=lambda: data))


@pytest.mark.parametrize("sign", ["\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\u2028", "\ufeff", "\U000e0001"])
def test_no_name_moves_a_cursor_or_turns_the_direction_of_a_line(sign: str) -> None:
    seen = SeenAlert(alert(place=f"Bj\u00f6rn{sign}31m"), T0)
    assert table_line(seen).plain.isprintable()
    line = json_line(seen)
    assert line.isprintable()
    assert "Björn" in line
    assert json.loads(line)["alert"]["place"] == f"Björn{sign}31m"


def test_what_is_published_once_it_has_begun_is_shown() -> None:
    client, open_until = ScriptedClient(), iter([True] * 3)
    found = tail(client, TOPICS, TailFilter(), lambda: next(open_until, False))
    # nothing was asked of it yet: whoever sees the header may publish
    client.say(TOPICS[1].name, encode_alert(ALERT))
    assert [one.said for one in found] == [ALERT]


def test_the_header_is_shown_when_each_topic_is_read_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notifier.toml").write_text(TEXT.format(folder=tmp_path, more="insecure = true"))
    client = ScriptedClient("persistent://acme/alerts-eu/alerts")
    client.close = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(cli, "open_pulsar_client", lambda *_, **__: client)
    done = CliRunner().invoke(cli.app, ["tail", "--config", str(tmp_path / "notifier.toml")])
    said = " ".join(done.output.split())
    assert (done.exit_code, "device time" in said) == (1, False)
    assert "persistent://acme/alerts-eu/alerts: pulsar://127.0.0.1:6650: TopicNotFound" in said
