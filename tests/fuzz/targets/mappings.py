"""What foreign devices send: messages of every preset, and samples from which a mapping is proposed."""

import contextlib
import tomllib
from pathlib import Path

from edge_agent.intake.messages import LATEST_US, Parsed
from edge_agent.mapping.formats import UndecodableMessage
from edge_agent.mapping.nmea import read_nmea
from edge_agent.mapping.parser import compile_mappings
from edge_agent.mapping.settings import MappingSettings, preset_names
from edge_agent.mapping.suggestion import SamplesUnreadable, propose, read_samples
from tests.fuzz.bounds import Target
from waybill.record import Batch, Position, Raw, Record, decode, encode
from waybill.settings import printable

EXAMPLES = Path(__file__).parents[2] / "edge_agent" / "mapping" / "examples"
PRESETS = {
    name: compile_mappings((MappingSettings.model_validate({"name": name, "preset": name}),)) for name in preset_names()
}
MESSAGES = {
    name: [
        (example["topic"], example["payload"].encode())
        for example in tomllib.loads((EXAMPLES / f"{name}.toml").read_text(encoding="utf-8"))["examples"]
        if "payload" in example
    ]
    for name in PRESETS
}
MAX_PROPOSED_BYTES = 4 << 10


def judge_mapped_message(data: bytes) -> None:
    """Each preset makes records that travel and are read again as they were, or keeps the bytes."""
    topic, _, payload = data.partition(b"\n")
    text = topic.decode("utf-8", "replace")
    for parser in PRESETS.values():
        parsed = parser.parse(text, payload)
        records = [*parser.accept(parsed, text, 0), *(late.parsed for late in parser.expire(10**12))]
        judge_records(records)
        assert len(parsed) > 1 or not isinstance(parsed[0].body, Raw) or parsed[0].body.payload == payload


def judge_records(parsed: list[Parsed]) -> None:
    assert parsed
    for one in parsed:
        assert one.device_time_us is None or 0 <= one.device_time_us < LATEST_US
        if isinstance(one.body, Position):
            assert abs(one.body.latitude) <= 90
            assert abs(one.body.longitude) <= 180
    records = tuple(
        Record(seq, one.device_time_us or 0, one.body, mapping=one.mapping) for seq, one in enumerate(parsed, 1)
    )
    batch = Batch("d", 1, len(records), records)
    # A converted number may lose its last binary digit on the wire, once.
    stored = decode(encode(batch))
    assert decode(encode(stored)) == stored
    assert [(type(one.body), one.mapping) for one in stored.records] == [
        (type(one.body), one.mapping) for one in records
    ]


def judge_sentences(data: bytes) -> None:
    """Sentences are counted once: as parts of fixes, as faults or as ignored."""
    try:
        fixes, faults, ignored = read_nmea(data)
    except UndecodableMessage:
        return
    begins = data.count(b"$") + data.count(b"!")
    assert len(fixes) + len(faults) + sum(ignored.values()) <= begins


def judge_samples(data: bytes) -> None:
    """The proposal is TOML that a terminal can show, and the presets in it are settings."""
    with contextlib.suppress(SamplesUnreadable):
        text = propose(read_samples(data[:MAX_PROPOSED_BYTES].decode("utf-8", "replace")))
        assert printable(text, keeps="\n") == text
        for mapping in tomllib.loads(text).get("mappings", []):
            assert "preset" not in mapping or MappingSettings.model_validate(mapping)


TARGETS = {
    "mapped_message": Target(
        tuple(topic.encode() + b"\n" + payload for messages in MESSAGES.values() for topic, payload in messages[:6]),
        judge_mapped_message,
        max_seconds=0.5,
    ),
    "mapping_samples": Target(
        tuple(
            b"\n".join(topic.encode() + b" " + payload for topic, payload in messages)
            for messages in MESSAGES.values()
            if messages
        ),
        judge_samples,
        max_seconds=1.0,
    ),
    "nmea_sentences": Target(tuple(payload for _, payload in MESSAGES["nmea"]), judge_sentences),
}
