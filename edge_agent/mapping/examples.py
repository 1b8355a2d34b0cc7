"""Runs the examples of mappings: `check-config` shows each one that gives something else than it promises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from edge_agent.intake.messages import MessageParser, Parsed
from edge_agent.mapping.parser import compile_mappings
from edge_agent.mapping.settings import MappingExample, MappingSettings, equal_scalars
from waybill.record import Event, Raw
from waybill.settings import name_advice

EXAMPLE_EVERY_US: Final = 1_000
"""Examples of one mapping follow each other so fast: halves of a position come together."""
MAX_SHOWN_CHARACTERS: Final = 200


def example_faults(mappings: Sequence[MappingSettings]) -> list[str]:
    """One line for each example that gives something else. The examples of a mapping run in their order."""
    faults = []
    for number, mapping in enumerate(mappings):
        parser = compile_mappings(mappings)
        for place, example in enumerate(mapping.examples):
            if fault := _fault(parser, example, place):
                faults.append(f"mappings.{number}.examples.{place}: mapping {mapping.name}: {fault}")
    return faults


def described(parsed: Parsed) -> dict[str, Any]:
    """A record as plain values: `kind`, the members of its body, and `time` in milliseconds; null: of its arrival."""
    body = parsed.body
    if isinstance(body, Raw):
        return {"kind": "raw", "reason": body.reason}
    members = body.model_dump(exclude_none=True)
    if isinstance(body, Event):
        members["attributes"] = json.loads(body.attributes)
    time_us = parsed.device_time_us
    return {"kind": type(body).__name__.lower(), **members, "time": None if time_us is None else time_us / 1000}


def _fault(parser: MessageParser, example: MappingExample, place: int) -> str:
    payload = example.message
    parsed = parser.accept(parser.parse(example.topic, payload), example.topic, (place + 1) * EXAMPLE_EVERY_US)
    gives = [described(one) for one in parsed]
    if example.refused:
        if [one.malformed for one in parsed] == [example.refused]:
            return ""
        return f"is not refused with {example.refused}: it gives {_shown(gives)}"
    if len(gives) != len(example.gives):
        return f"gives {len(gives)} records instead of {len(example.gives)}: {_shown(gives)}"
    return next(_differences(gives, example.gives), "")


def _differences(gives: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> Iterator[str]:
    for number, (record, promised) in enumerate(zip(gives, wanted, strict=True)):
        for name, value in promised.items():
            if name not in record:
                yield f"record {number} has no {name!r}{name_advice(name, record)}: {_shown(record)}"
            elif not _equal(record[name], value, is_time=name == "time"):
                yield f"record {number}: {name} is {_shown(record[name])} instead of {_shown(value)}"


def _equal(value: Any, promised: Any, *, is_time: bool) -> bool:
    if is_time and isinstance(promised, str):
        promised = datetime.fromisoformat(promised)
    if isinstance(promised, datetime):
        return promised.tzinfo is not None and value == promised.timestamp() * 1000
    if isinstance(value, float) and isinstance(promised, int | float) and not isinstance(promised, bool):
        return math.isclose(value, promised, rel_tol=1e-9, abs_tol=1e-9)
    return equal_scalars(value, promised)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"
