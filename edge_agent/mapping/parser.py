"""The parser of an agent with mappings: chooses the mapping of a message and reads it, element by element."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from edge_agent.intake.messages import (
    MAX_ELEMENTS,
    LateRecord,
    MessageParser,
    Parsed,
    parse_message,
    printable_sample,
)
from edge_agent.mapping.compiler import CompiledMapping, PositionHalf, Refusal, conjunction
from edge_agent.mapping.formats import (
    Decoder,
    NotForMappings,
    TopicDecoder,
    Undecodable,
    UndecodableMessage,
    decoder_of,
)
from edge_agent.mapping.join import JoinedPosition, PositionJoin
from edge_agent.mapping.paths import Enclosing, TopicPattern, elements_of
from edge_agent.mapping.settings import MappingSettings
from waybill.record import MAX_RAW_BYTES, NO_MAPPING, Body, Event, Position, Raw, Signal, vehicle_contract_topic

HELD: Final = "+held"
MAX_ROUTES: Final = 1024
"""Topics whose mapping is remembered; a longer topic than MAX_ROUTE_CHARACTERS is not."""
MAX_ROUTE_CHARACTERS: Final = 256
MAX_REASON_CHARACTERS: Final = 64
_ANY: Final[Mapping[str, str]] = MappingProxyType({})
_LATITUDE: Final = "Vehicle.CurrentLocation.Latitude"
_LONGITUDE: Final = "Vehicle.CurrentLocation.Longitude"


@dataclass(slots=True)
class MappingCounters:
    """Messages of one mapping since the settings were loaded. `last_refusal`: reason and beginning of the message."""

    mapping: str
    messages: int = 0
    records: int = 0
    refused: int = 0
    last_refusal: str = ""
    sample: str = ""


class Candidate(NamedTuple):
    """A mapping for messages of a topic, and the named levels of that topic."""

    mapping: CompiledMapping
    levels: Mapping[str, str]


class Route(NamedTuple):
    """How messages of a topic are decoded, and the mappings that may read them. Without candidates: none may."""

    decode: Decoder | None
    candidates: tuple[Candidate, ...]


class TornPart(NamedTuple):
    """What a message says about a torn position: its join there, and the half; None: the record is a whole position.
    `clears`: neither of them, a place is missing or refused.
    """

    join: PositionJoin
    key: tuple[str, ...]
    half: PositionHalf | None
    clears: bool = False


class _Element(NamedTuple):
    candidate: Candidate
    element: Any
    around: Enclosing


def compile_mappings(settings: Sequence[MappingSettings], levels: Mapping[str, str] = _ANY) -> MessageParser:
    """The parser of the agent's settings. `levels`: by name, levels of topics that have to be this text."""
    return MappingParser(settings, levels) if settings else MessageParser()


class MappingParser(MessageParser):
    """Reads messages with mappings, and all others by the vehicle's contract. Used by one thread, except `rows`."""

    def __init__(self, settings: Sequence[MappingSettings], levels: Mapping[str, str] = _ANY) -> None:
        self._mappings = [CompiledMapping(one) for one in settings]
        self._patterns = [TopicPattern(one.topic, levels) for one in settings]
        self.filters = tuple(pattern.filter for pattern in self._patterns)
        self._decoders = _shared_decoders(settings)
        self._routes: dict[str, Route | None] = {}
        self._counters = {one.label: MappingCounters(one.settings.name) for one in self._mappings}
        self._joins = {
            one.label: PositionJoin(
                settle_us=join.settle_ms * 1_000,
                hold_us=round(join.hold_s * 1_000_000),
                no_fix=frozenset(position.absent),
            )
            for one in self._mappings
            if (join := one.settings.join) is not None and (position := one.settings.position) is not None
        }
        self._late: list[LateRecord] = []

    def parse(self, topic: str, payload: bytes, missing: int = 0) -> tuple[Parsed, ...]:
        route = self._routes[topic] if topic in self._routes else self._new_route(topic)
        if route is None or missing or len(payload) > MAX_RAW_BYTES:
            return parse_message(topic, payload, missing)
        decode, candidates = route
        if decode is None:
            return _no_match(topic, payload, "")
        try:
            value = decode(payload)
        except UndecodableMessage as error:
            if isinstance(error, NotForMappings):
                return _no_match(topic, payload, candidates[0].mapping.label if len(candidates) == 1 else "")
            return self._raw(topic, payload, candidates[0], Refusal(error.field, error.why, error.detail))
        if len(candidates) == 1 and candidates[0].mapping.each is None and type(value) is not list:
            parsed = self._single(topic, payload, candidates[0], value)
        else:
            parsed = self._several(topic, payload, candidates, value)
        if parsed is None:
            return _no_match(topic, payload, candidates[0].mapping.label if len(candidates) == 1 else "")
        return parsed

    def _single(self, topic: str, payload: bytes, candidate: Candidate, value: Any) -> tuple[Parsed, ...] | None:
        """The records of a message that is one element."""
        try:
            records = self._records(candidate, value, (), payload)
        except Refusal as error:
            return self._raw(topic, payload, candidate, error)
        if records is None:
            return None
        if candidate.mapping.has_texts and _text_characters(records) > MAX_RAW_BYTES:
            return self._raw(topic, payload, candidate, Refusal("size", "range", _TOO_LARGE))
        return tuple(records)

    def _several(
        self, topic: str, payload: bytes, candidates: Sequence[Candidate], value: Any
    ) -> tuple[Parsed, ...] | None:
        """The records of a message with several elements, each judged alone; of one mapping or several."""
        elements: list[_Element] = []
        for candidate in candidates:
            own = _elements(candidate.mapping, value)
            if len(own) > MAX_ELEMENTS:
                return self._raw(topic, payload, candidate, Refusal("each", "too-many"))
            # What cannot be decoded is refused once, by the first mapping.
            elements += [
                _Element(candidate, *one)
                for one in own
                if candidate is candidates[0] or not isinstance(one[0], Undecodable)
            ]
        if not elements:
            return self._raw(topic, payload, candidates[0], Refusal("each", "missing", "the message has no element"))
        found: list[Parsed] = []
        characters = 0
        refusals: list[tuple[Candidate, Refusal]] = []
        for candidate, element, around in elements:
            part = payload if len(elements) == 1 else _payload_of(element)
            try:
                if isinstance(element, Undecodable):
                    raise Refusal("format", element.why, element.detail)
                records = self._records(candidate, element, around, part) or []
                characters += _text_characters(records)
                found += records
            except Refusal as error:
                refusals.append((candidate, error))
                found += self._raw(topic, part, candidate, error)
            if characters > MAX_RAW_BYTES:
                return self._raw(topic, payload, candidate, Refusal("size", "range", _TOO_LARGE))
        if not found:
            return None
        if len(refusals) == len(found):
            return self._raw(topic, payload, *refusals[0])
        return tuple(found)

    def _records(self, candidate: Candidate, element: Any, around: Enclosing, payload: bytes) -> list[Parsed] | None:
        mapping, levels = candidate
        left_out: list[str] = []
        read = mapping.read(element, around, levels, left_out)
        if read is None:
            return None
        bodies, time_us = read
        label, joins, missing = mapping.label, mapping.joins, tuple(left_out)
        records = []
        for body in bodies:
            torn: TornPart | None = None
            if joins and isinstance(body, Position | PositionHalf):
                half = body if isinstance(body, PositionHalf) else None
                torn = TornPart(self._joins[label], mapping.join_key(levels), half)
            record = _signal_of(body) if isinstance(body, PositionHalf) else body
            records.append(Parsed(record, time_us, "", payload, missing, "", label, torn))
            missing = ()
        if joins and "position" in left_out:
            records[0] = records[0]._replace(torn=self._no_place(candidate))
        return records

    def _no_place(self, candidate: Candidate) -> TornPart | None:
        mapping, levels = candidate
        if not mapping.joins:
            return None
        return TornPart(self._joins[mapping.label], mapping.join_key(levels), None, clears=True)

    def _raw(self, topic: str, payload: bytes, candidate: Candidate, refusal: Refusal) -> tuple[Parsed, ...]:
        (raw,) = _raw(topic, payload, candidate, refusal)
        return (raw._replace(torn=self._no_place(candidate)),)

    def accept(self, parsed: tuple[Parsed, ...], topic: str, arrival_us: int) -> tuple[Parsed, ...]:
        counted = ""
        for one in parsed:
            if not one.mapping:
                continue
            counters = self._counters[one.mapping]
            counters.messages += counted != one.mapping
            counted = one.mapping
            if one.malformed:
                counters.refused += 1
                counters.last_refusal = f"{one.malformed}: {one.detail}" if one.detail else one.malformed
                counters.sample = printable_sample(one.payload)
            else:
                counters.records += 1
            if one.torn is not None:
                self._join(one, topic, arrival_us)
        return parsed

    def _join(self, one: Parsed, topic: str, arrival_us: int) -> None:
        assert isinstance(one.torn, TornPart)
        join, key, half, clears = one.torn
        if clears:
            join.clear(key)
            return
        if half is None:
            assert isinstance(one.body, Position)
            place = one.body.latitude, one.body.longitude
            positions = join.add_whole(key, *place, one.device_time_us, arrival_us)
        else:
            positions = join.add_half(key, half, one.device_time_us, arrival_us, (topic, one))
        # Of a half that came earlier: without a device time it gets the time of its own arrival.
        self._late += [_late(position) for position in positions]

    def due_in(self, now_us: int) -> float | None:
        if self._late:
            return 0.0
        due_us = [due_us for join in self._joins.values() if (due_us := join.due_us()) is not None]
        return max(0.0, (min(due_us) - now_us) / 1_000_000) if due_us else None

    def expire(self, now_us: int) -> Sequence[LateRecord]:
        late, self._late = self._late, []
        late += [_late(position) for join in self._joins.values() for position in join.expire(now_us)]
        for one in late:
            self._counters[one.parsed.mapping.removesuffix(HELD)].records += 1
        return late

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self._counters.values()]

    def _new_route(self, topic: str) -> Route | None:
        route = self._route(topic)
        if len(topic) <= MAX_ROUTE_CHARACTERS:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            self._routes[topic] = route
        return route

    def _route(self, topic: str) -> Route | None:
        """None: the message is read by the contract, or carried raw as unknown."""
        matched = [
            (number, levels)
            for number, pattern in enumerate(self._patterns)
            if (levels := pattern.match(topic)) is not None
        ]
        candidates = []
        for number, levels in matched:
            test = conjunction(self._mappings[number].level_conditions)
            if test is None or test(None, (), levels):
                candidates.append((number, Candidate(self._mappings[number], levels)))
        if candidates:
            decoder = self._decoders[candidates[0][0]]
            decode = decoder.at(topic) if isinstance(decoder, TopicDecoder) else decoder
            return Route(decode, tuple(one for _, one in candidates))
        return None if not matched or vehicle_contract_topic(topic) else Route(None, ())


def _shared_decoders(settings: Sequence[MappingSettings]) -> list[Decoder | TopicDecoder]:
    """One decoder for each mapping; mappings of the same form share it, so that a message is decoded once."""
    by_form: dict[tuple[Any, ...], list[MappingSettings]] = {}
    for one in settings:
        by_form.setdefault(one.form, []).append(one)
    decoders = {form: decoder_of(*mappings) for form, mappings in by_form.items()}
    return [decoders[one.form] for one in settings]


def _elements(mapping: CompiledMapping, value: Any) -> list[tuple[Any, Enclosing]]:
    if mapping.each is not None:
        return elements_of(value, mapping.each)
    return [(element, ()) for element in value] if type(value) is list else [(value, ())]


def _payload_of(element: Any) -> bytes:
    """The part of a message that one element is."""
    if isinstance(element, Undecodable):
        return element.payload
    return json.dumps(element, separators=(",", ":")).encode()


_TOO_LARGE: Final = "the message repeats a text in too many records"


def _text_characters(records: Sequence[Parsed]) -> int:
    """The length of the texts in records: paths may lead each element to the same long text of the message."""
    characters = 0
    for one in records:
        body = one.body
        if isinstance(body, Event):
            characters += len(body.attributes)
        elif isinstance(body, Signal) and isinstance(body.value, str):
            characters += len(body.value)
    return characters


def _no_match(topic: str, payload: bytes, label: str) -> tuple[Parsed, ...]:
    """A message that no mapping reads; a contract topic stays readable by the contract."""
    if vehicle_contract_topic(topic) is not None:
        return parse_message(topic, payload)
    raw = Raw(topic=topic, payload=payload, reason=NO_MAPPING)
    return (Parsed(raw, None, NO_MAPPING, payload, mapping=label),)


def _raw(topic: str, payload: bytes, candidate: Candidate, refusal: Refusal) -> tuple[Parsed, ...]:
    reason = refusal.reason[:MAX_REASON_CHARACTERS]
    # Nothing is wrong with a receiver that sees no satellite; this is the word for it everywhere.
    reason = "no-fix" if refusal.why == "no-fix" else reason
    raw = Raw(topic=topic, payload=payload, reason=reason)
    return (Parsed(raw, None, reason, payload, detail=refusal.detail, mapping=candidate.mapping.label),)


def _signal_of(half: PositionHalf) -> Body:
    if half.longitude is None:
        assert half.latitude is not None
        return Signal(path=_LATITUDE, value=half.latitude)
    return Signal(path=_LONGITUDE, value=half.longitude)


def _joined(one: Parsed, position: JoinedPosition) -> Parsed:
    """The position that the message of `one` completes."""
    label = f"{one.mapping}{HELD}" if position.is_held else one.mapping
    return Parsed(position.body, position.time_us, "", one.payload, position.left_out, "", label)


def _late(position: JoinedPosition) -> LateRecord:
    topic, one = position.source
    return LateRecord(topic, _joined(one, position), position.arrival_us)
