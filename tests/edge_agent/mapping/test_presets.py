"""Presets: messages of our own in the documented forms, broken ones too, and the records that they become.

Each file in `examples` has the messages of one preset. They are read in their order, `at_ms` after the first, so that
halves of a torn position meet. `gives` names every member of every record; `later` what comes when a half is held.
"""

import re
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.intake.messages import MessageParser, Parsed
from edge_agent.mapping.examples import described
from edge_agent.mapping.parser import compile_mappings
from edge_agent.mapping.settings import MappingSettings, preset_names
from tests.edge_agent.mapping.protobuf_writer import FORMATS, encode
from waybill.record import Position, Raw

EXAMPLES = Path(__file__).parent / "examples"
LATER_MS = 10_000


def shown(one: Parsed) -> dict[str, Any]:
    """A record as the files have it."""
    members = described(one)
    if one.device_time_us is not None:
        moment = datetime.fromtimestamp(one.device_time_us / 1e6, UTC).isoformat(timespec="milliseconds")
        members["time"] = moment.replace(".000", "").replace("+00:00", "Z")
    elif not one.malformed:
        members["time"] = "arrival"
    return members | {"held": True} if one.mapping.endswith("+held") else members


def is_same(records: Iterable[Parsed], expected: list[dict[str, Any]]) -> bool:
    """Whether the records are these. Numbers may differ by the last digits of a conversion."""
    return [shown(one) for one in records] == [
        {key: pytest.approx(value, abs=1e-3) if isinstance(value, float) else value for key, value in row.items()}
        for row in expected
    ]


def read_later(parser: MessageParser, now_ms: int) -> list[Parsed]:
    return [one.parsed for one in parser.expire(now_ms * 1_000)]


def payload_of(preset: str, example: dict[str, Any]) -> bytes:
    """A message as text, as hexadecimal digits, or as the members of one in Protocol Buffers."""
    if "message" in example:
        return encode(example["message"], FORMATS[preset])
    return bytes.fromhex(example["payload_hex"]) if "payload_hex" in example else str(example["payload"]).encode()


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_reads_what_its_format_documents_and_refuses_the_rest_with_a_reason(preset: str) -> None:
    tables = tomllib.loads((EXAMPLES / f"{preset}.toml").read_text(encoding="utf-8"))
    parser = compile_mappings(
        (MappingSettings.model_validate({"name": "mine", "preset": preset, **tables.get("settings", {})}),)
    )
    assert len(tables["examples"]) >= 8
    assert any("refused" in one for one in tables["examples"])
    for number, example in enumerate(tables["examples"]):
        name = f"{preset} {number}: {example['name']}"
        now_ms = example.get("at_ms", number * LATER_MS)
        payload = payload_of(preset, example)
        parsed = parser.parse(example["topic"], payload)
        left_out = [left for one in parsed for left in one.left_out]
        parsed = parser.accept(parsed, example["topic"], now_ms * 1_000)
        expected = example.get("gives") or [{"kind": "raw", "reason": example["refused"]}]
        assert is_same(parsed, expected), f"{name}: {[shown(one) for one in parsed]}"
        assert sorted(left_out) == sorted(example.get("left_out", [])), name
        assert all(one.mapping.startswith("mine@") for one in parsed if not one.malformed), name
        if isinstance(parsed[0].body, Raw) and len(parsed) == 1:
            assert parsed[0].body.payload == payload, name
        if "later" in example:
            later = read_later(parser, now_ms + LATER_MS)
            assert is_same(later, example["later"]), f"{name}: {[shown(one) for one in later]}"
    assert not read_later(parser, 10**9)


def test_a_preset_may_be_completed_by_own_members() -> None:
    mine = {
        "name": "mine",
        "preset": "thingsboard",
        "topic": "tb/{device}",
        "position": {"speed": {"path": "values.v", "unit": "mph"}},
    }
    parser = compile_mappings((MappingSettings.model_validate(mine),))
    (one,) = parser.parse("tb/7", b'{"ts":1795359064626,"values":{"latitude":53.55,"longitude":9.99,"v":10}}')
    assert shown(one)["speed_mps"] == pytest.approx(4.4704)


MESSAGES = [
    (preset, example["topic"], example["payload"])
    for preset in preset_names()
    # NMEA's coordinates are no decimal numbers, those of Protocol Buffers no text: their tests have oracles.
    if preset not in {"nmea", *FORMATS}
    for example in tomllib.loads((EXAMPLES / f"{preset}.toml").read_text(encoding="utf-8"))["examples"]
]
PARSERS = {
    preset: compile_mappings((MappingSettings.model_validate({"name": "mine", "preset": preset}),))
    for preset in {preset for preset, _, _ in MESSAGES}
}
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 3), st.text('0123456789.-e,:{}[]"nul ', max_size=3)), max_size=4
)


@given(st.sampled_from(MESSAGES), EDITS)
def test_a_damaged_message_raises_nothing_and_moves_no_position(message: tuple[str, str, str], edits: Any) -> None:
    """What is accepted as a position stands in the message: read by nothing but a search for numbers."""
    preset, topic, payload = message
    for place, removed, inserted in edits:
        at = round(place * len(payload))
        payload = payload[:at] + inserted + payload[at + removed :]
    numbers = {float(one) for one in re.findall(r"-?[0-9]+\.?[0-9]*(?:e-?[0-9]{1,3})?", payload, re.IGNORECASE)}
    turned = numbers | {number - 360 for number in numbers}
    for one in PARSERS[preset].parse(topic, payload.encode()):
        if isinstance(one.body, Position):
            assert one.body.latitude in numbers
            assert one.body.longitude in turned
