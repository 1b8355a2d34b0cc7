"""edge-agent map: try a mapping without a broker, watch messages on the real one, and propose a mapping."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from edge_agent.config import AgentSettings, IntakeSettings
from edge_agent.devices import load_devices, topics_of
from edge_agent.errors import AgentError, LinkError
from edge_agent.intake.messages import Parsed
from edge_agent.mapping.examples import described
from edge_agent.mapping.parser import compile_mappings
from edge_agent.mapping.suggestion import MAX_SAMPLES, Sample, propose, read_samples
from edge_agent.vehicle_broker import ARRIVED_TOPIC
from waybill.record import MAX_RAW_BYTES, NO_MAPPING
from waybill.settings import printable

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Try, watch and propose mappings of foreign messages.",
)
Config = Annotated[Path, typer.Option("--config", "-c", help="The agent's settings, TOML.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each message.")]
Messages = Annotated[int, typer.Option("--messages", min=1, max=MAX_SAMPLES, help="End after this many messages.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, max=86_400, help="End after this time.")]
MAX_SHOWN_BYTES: Final = 200
_LONGEST_WAIT_S: Final = 0.5
_UNLISTED: Final = "unlisted, so the agent does not get this"
_LATER_US: Final = 10**12
"""After every wait of a half for the other one."""


@app.command(name="try")
def try_message(
    config: Config,
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic of the message.")] = "",
    payload: Annotated[str, typer.Option("--payload", "-p", help="The message; - reads it from standard input.")] = "",
    samples: Annotated[
        Path | None,
        typer.Option("--samples", help="Lines TOPIC PAYLOAD instead of one message, as of `mosquitto_sub -v`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a message becomes, or why it cannot be read. No broker and no buffer are used.

    Exit status: 0 if every message is read; 1 if one is not; 78 if the settings are wrong.

    Example: edge-agent map try --config agent.toml --topic owntracks/ada/phone --payload '{"_type": "location"}'
    """
    with _errors():
        devices = [one.settings for one in load_devices(config)]
        if (samples is None) != bool(topic and payload) or (samples is not None and (topic or payload)):
            raise AgentError("give either --topic and --payload, or --samples")
        messages = [Sample(topic, _payload(payload))] if samples is None else read_samples(_text_of(samples))
        report = _Report(devices, as_json=as_json)
        now_us, heard = 0, set[str]()
        for message in messages:
            if message.topic in heard:  # a file has no times, and a topic comes again with the next fix
                now_us, heard = now_us + report.round_us, set()
                report.show_late(now_us)
            heard.add(message.topic)
            report.show(message, now_us)
        report.show_late(now_us + _LATER_US)
    raise typer.Exit(1 if report.refused else 0)


@app.command()
def listen(
    config: Config,
    *,
    filters: Annotated[
        list[str], typer.Option("--topic", "-t", help="MQTT filter instead of those of the settings; may be repeated.")
    ] = [],  # noqa: B006  # typer reads it, and nobody changes it
    messages: Messages = 1000,
    seconds: Seconds = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Watch the vehicle's broker: each message, its mapping, and what it becomes. A running agent is not disturbed.

    Of several devices it shows which one has the message; of an unlisted one, the agent does not get it.

    Exit status: 0, also after Ctrl-C; 1 if the broker cannot be reached; 78 if the settings are wrong.

    Example: edge-agent map listen --config agent.toml --seconds 60
    """
    with _errors():
        devices = [one.settings for one in load_devices(config)]
        report, intake = _Report(devices, as_json=as_json), devices[0].intake
        topics = filters or [*(topic for one in devices for topic in one.intake.topics), *report.parser.filters]
        with suppress(KeyboardInterrupt):
            _listen(intake, topics, report.show, report.show_late, messages=messages, seconds=seconds)
    typer.echo(f"{report.messages} messages, {report.refused} of them not read", err=True)


@app.command()
def suggest(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The agent's settings: listen there.")] = None,
    *,
    samples: Annotated[
        Path | None, typer.Option("--samples", help="A file of lines TOPIC PAYLOAD, as of `mosquitto_sub -v`.")
    ] = None,
    messages: Messages = 1000,
    seconds: Seconds = 30.0,
) -> None:
    """Propose mappings for messages of a file, or of the vehicle's broker, that the agent does not read yet.

    A unit that the messages do not show is "?", which no settings accept: replace it.

    Exit status: 0; 1 if there is no message; 78 if the settings are wrong.

    Example: edge-agent map suggest --samples messages.txt
    """
    with _errors():
        if (samples is None) == (config is None):
            raise AgentError("give either --samples or --config")
        if config is not None:
            found = _unread(load_devices(config)[0].settings, messages=messages, seconds=seconds)
        else:
            assert samples is not None
            found = read_samples(_text_of(samples))
        typer.echo(propose(found), nl=False)


def _unread(settings: AgentSettings, *, messages: int, seconds: float) -> list[Sample]:
    """Messages on the broker that settings and contract do not read."""
    parser, found = compile_mappings(settings.mappings), list[Sample]()

    def keep(sample: Sample, _now_us: int) -> None:
        if all(one.malformed for one in parser.parse(*sample)):
            found.append(sample)

    with suppress(KeyboardInterrupt):
        _listen(settings.intake, ["#"], keep, lambda _now_us: None, messages=messages, seconds=seconds)
    if not found:
        raise AgentError(f"no message within {seconds:g} s that the agent does not read already")
    return found


def _payload(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read(MAX_RAW_BYTES + 1)
    return os.fsencode(text)


def _text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


# What messages become, for people and for programs.


class _Report:
    """Prints messages as they are read."""

    def __init__(self, devices: Sequence[AgentSettings], *, as_json: bool) -> None:
        first, is_single = devices[0], len(devices) == 1
        self._mappings = {one.label: one for one in first.mappings}
        self._as_json = as_json
        # Of several devices the messages of unlisted ones are read, too: here a person sees what is missing.
        self.parser = compile_mappings(first.mappings, first.device.levels if is_single else {})
        self._topics = {} if is_single else {one.device.id: [*topics_of(one)] for one in devices}
        self.round_us = 2_000 * max((one.join.settle_ms for one in first.mappings if one.join is not None), default=0)
        """So much later the halves of a fix belong together."""
        self.messages = self.refused = 0

    def show(self, message: Sample, now_us: int) -> None:
        topic, payload = message
        parsed = self.parser.accept(self.parser.parse(topic, payload), topic, now_us)
        self.messages += 1
        self.refused += any(one.malformed for one in parsed) or self._device(topic) == _UNLISTED
        self._print(topic, parsed, payload)

    def show_late(self, now_us: int) -> None:
        """Positions whose other half did not come."""
        for late in self.parser.expire(now_us):
            self._print(late.topic, (late.parsed,), late.parsed.payload)

    def _device(self, topic: str) -> str:
        """The device that has the topic; "" if there is only one."""
        owners = (
            device for device, topics in self._topics.items() if any(one.match(topic) is not None for one in topics)
        )
        return next(owners, _UNLISTED) if self._topics else ""

    def _print(self, topic: str, parsed: Sequence[Parsed], payload: bytes) -> None:
        rows, device = [_row(one) for one in parsed], self._device(topic)
        if self._as_json:
            text = json.dumps({"topic": topic, **({"device": device} if device else {}), "records": rows})
        else:
            lines = [line for row in rows for line in _lines(row)]
            lines += dict.fromkeys(hint for one in parsed if one.malformed for hint in self._hints(one))
            if any(one.malformed for one in parsed):
                lines.append(f"message: {printable(payload[:MAX_SHOWN_BYTES].decode('utf-8', 'replace').strip())}")
            title = f"{topic}  (device {device})" if device else topic
            text = "\n".join([printable(title), *(f"  {line}" for line in lines)])
        typer.echo(text)

    def _hints(self, one: Parsed) -> Iterator[str]:
        """Where the settings look for what is missing or wrong."""
        if one.malformed == "unknown-topic":
            yield f"no mapping has this topic; topics of mappings: {', '.join(self.parser.filters) or 'none'}"
        elif one.malformed == NO_MAPPING:
            yield "no `when` of the mappings of this topic holds"
        elif (settings := self._mappings.get(one.mapping)) is not None:
            field = "latitude" if one.malformed == "no-fix" else one.malformed.split(":")[1]
            for place, source in settings.parts():
                if place.removeprefix("position.") == field and getattr(source, "path", None):
                    yield printable(f"the mapping reads `{place}` at the path {source.path}")


def _row(one: Parsed) -> dict[str, Any]:
    """One record as plain values: those of `described`, with the mapping, and a time that a person can read."""
    members = described(one)
    row: dict[str, Any] = {"kind": members.pop("kind"), "mapping": one.mapping}
    if one.malformed:
        return {**row, **members, "detail": one.detail}
    row["time"] = "arrival" if one.device_time_us is None else _iso(one.device_time_us)
    return {**row, **{name: value for name, value in members.items() if name != "time"}, "left_out": [*one.left_out]}


def _iso(time_us: int) -> str:
    moment = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000, tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + "Z"


def _lines(row: dict[str, Any]) -> Iterator[str]:
    """A record in words: what it is, then a line for each member."""
    mapping = f"  (mapping {printable(row['mapping'])})" if row["mapping"] else ""
    if "reason" in row:
        detail = f": {row['detail']}" if row["detail"] else ""
        yield printable(f"NOT READ  {row['reason']}{detail}") + mapping
        return
    yield f"{row['kind']}{mapping}"
    for name, value in row.items():
        if name not in {"kind", "mapping", "left_out"}:
            yield f"  {name:<14}{printable(value if isinstance(value, str) else json.dumps(value))}"
    if row["left_out"]:
        yield printable(f"  left out      {', '.join(row['left_out'])}")


# The vehicle's broker.


def _listen(
    broker: IntakeSettings,
    filters: Sequence[str],
    on_sample: Callable[[Sample, int], None],
    on_time: Callable[[int], None],
    *,
    messages: int,
    seconds: float,
) -> None:
    """Hands over what the broker sends, with a session of its own that ends with the connection. Raises LinkError."""
    from edge_agent.uplink.mqtt_session import MqttSession
    from waybill.mqtt.mqtt_client import MqttMessage, MqttSessionOptions

    left = messages

    def take(message: MqttMessage) -> None:
        nonlocal left
        # As for the agent: what the broker retained is old, and an empty message only deletes it.
        if left > 0 and message.payload and not message.retain and not message.topic.startswith(ARRIVED_TOPIC):
            left -= 1
            on_sample(Sample(message.topic, message.payload), time.monotonic_ns() // 1_000)
        session.acknowledge(message.mid)

    options = MqttSessionOptions(client_id=f"edge-agent-map-{secrets.token_hex(4)}", truncates_larger=True)
    session = MqttSession(broker, options, take)
    deadline_s = time.monotonic() + seconds
    try:
        try:
            session.open()
        except LinkError as error:
            raise LinkError(f"the vehicle's broker of [intake] is not reached: {error}") from error
        for one in dict.fromkeys(filters):
            session.subscribe(one, takes_retained=False)
        is_told = False
        while left > 0 and (rest_s := deadline_s - time.monotonic()) > 0:
            session.poll(min(rest_s, _LONGEST_WAIT_S))
            if session.is_subscribed and not is_told:
                is_told = True
                typer.echo(f"listening at {broker.host}:{broker.port}; Ctrl-C ends it", err=True)
            on_time(time.monotonic_ns() // 1_000)
    finally:
        session.close()


def _errors() -> Any:
    # The commands of the agent import this module.
    from edge_agent.cli import errors_as_lines

    return errors_as_lines()
