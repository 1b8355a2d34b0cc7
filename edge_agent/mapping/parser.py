"""The parser of an agent with mappings: chooses the mapping of a message and reads it, element by element."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from edge_agent.intake.messages import (
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
from edge_agent.mapping.settings import VEHICLE_NAMES, MappingSettings
from waybill.record import (
    MAX_ELEMENTS,
    MAX_RAW_BYTES,
    NO_ARRIVAL,
    NO_MAPPING,
    Body,
    Event,
    Position,
    Raw,
    Signal,
    vehicle_contract_topic,
)

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
    """Messages of one mapping since the settings were loaded. `last_refusal`: reason and beginning of the message.

    `silent_from_us`, `latest_us`: when the first message since the last record came, and the last message.
    """

    mapping: str
    messages: int = 0
    records: int = 0
    refused: int = 0
    last_refusal: str = ""
    sample: str = ""
    silent_from_us: int | None = None
    latest_us: int = 0

    def refuse(self, one: Parsed) -> None:
        self.refused += 1
        self.last_refusal = f"{one.malformed}: {one.detail}" if one.detail else one.malformed
        self.sample = printable_sample(one.payload)

    def advance(self, arrival_us: int, *, is_read: bool) -> None:
        """`is_read`: a message of its topics became a record."""
        self.latest_us = arrival_us
        if is_read:
            self.silent_from_us = None
        elif self.silent_from_us is None:
            self.silent_from_us = arrival_us

    def row(self) -> dict[str, Any]:
        about = asdict(self)
        silent_from_us, latest_us = about.pop("silent_from_us"), about.pop("latest_us")
        return about | {"silent_s": 0.0 if silent_from_us is None else (latest_us - silent_from_us) / 1_000_000}


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
        self._feeds = {one.label: FeedVehicle() for one in self._mappings if one.settings.may_mix_vehicles}
        self.needs_arrivals = any(one.time.else_ == "arrival" for one in settings)

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
            if (refusal := self._refusal_of(candidate, own)) is not None:
                return self._raw(topic, payload, candidate, refusal)
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

    def _refusal_of(self, candidate: Candidate, elements: Sequence[tuple[Any, Enclosing]]) -> Refusal | None:
        """Why these elements cannot be read together, if they cannot."""
        if len(elements) > MAX_ELEMENTS:
            return Refusal("each", "too-many")
        feed = self._feeds.get(candidate.mapping.label)
        is_mixed = feed is not None and feed.is_mixed(candidate, elements)
        return Refusal("vehicle", "several", _SEVERAL) if is_mixed else None

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

    def without_arrival(self, parsed: tuple[Parsed, ...], topic: str, payload: bytes) -> tuple[Parsed, ...]:
        untimed = [one for one in parsed if _needs_arrival(one)]
        for one in untimed:
            # A half that waited belongs to no other one.
            if isinstance(one.torn, TornPart):
                one.torn.join.clear(one.torn.key)
        if untimed and len(untimed) == len(parsed):
            return (_queued(topic, payload, untimed[0]),)
        found: list[Parsed] = []
        element: bytes | None = None
        for one in parsed:
            if not _needs_arrival(one):
                found.append(one)
            elif one.payload is not element:
                element = one.payload
                found.append(_queued(topic, element, one))
        return tuple(found)

    def accept(self, parsed: tuple[Parsed, ...], topic: str, arrival_us: int) -> tuple[Parsed, ...]:
        counted = ""
        is_read = False
        for one in parsed:
            if not one.mapping:
                continue
            counters = self._counters[one.mapping]
            counters.messages += counted != one.mapping
            counted = one.mapping
            if one.malformed:
                counters.refuse(one)
            else:
                counters.records += 1
                is_read = True
            if one.torn is not None:
                self._join(one, topic, arrival_us)
        if counted or parsed[0].malformed == NO_MAPPING:
            self._advance(topic, parsed[0], arrival_us, is_counted=counted != "", is_read=is_read)
        return parsed

    def _advance(self, topic: str, first: Parsed, arrival_us: int, *, is_counted: bool, is_read: bool) -> None:
        """A message counts for all mappings that may read its topic: what none of them reads, each of them refuses."""
        route = self._routes[topic] if topic in self._routes else self._new_route(topic)
        for candidate in () if route is None else route.candidates:
            counters = self._counters[candidate.mapping.label]
            counters.advance(arrival_us, is_read=is_read)
            if not is_counted:
                counters.messages += 1
                counters.refuse(first)

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
            counters = self._counters[one.parsed.mapping.removesuffix(HELD)]
            counters.records += 1
            counters.silent_from_us = None
        return late

    def rows(self) -> list[dict[str, Any]]:
        return [one.row() for one in self._counters.values()]

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


_SEVERAL: Final = 'the feed has several vehicles: add when = [{ path = "vehicle.vehicle.id", is = "…" }]'
MAX_VEHICLE_CHARACTERS: Final = 256


class FeedVehicle:
    """The vehicle of a GTFS feed, for a mapping whose conditions name none: its positions would make one track.

    After a second vehicle nothing is read any more, because the first one may be the wrong one.
    """

    def __init__(self) -> None:
        self._name = ""
        self._is_mixed = False

    def is_mixed(self, candidate: Candidate, elements: Sequence[tuple[Any, Enclosing]]) -> bool:
        """Whether the feed has had several vehicles, in these elements of a message or in those before."""
        mapping, levels = candidate
        entities = [one for one, around in elements if _has_place(one) and mapping.may_read(one, around, levels)]
        names = {_vehicle_name(one) for one in entities}
        # The id of an entity names it in its message only.
        unnamed = {str(one.get("id")) for one in entities} if names == {""} else {""}
        known = {*names, self._name} - {""}
        self._is_mixed = self._is_mixed or len(names) > 1 or len(known) > 1 or len(unnamed) > 1
        self._name = next(iter(known), "")
        return self._is_mixed


def _has_place(entity: Any) -> bool:
    return isinstance(entity, dict) and not entity.get("is_deleted") and "position" in entity.get("vehicle", {})


def _vehicle_name(entity: dict[str, Any]) -> str:
    about = entity.get("vehicle", {}).get("vehicle", {})
    return next((str(about[name])[:MAX_VEHICLE_CHARACTERS] for name in VEHICLE_NAMES if about.get(name)), "")


def _needs_arrival(one: Parsed) -> bool:
    return one.device_time_us is None and one.mapping != "" and not one.malformed


_QUEUED: Final = "it may have waited at the vehicle's broker, and it has no time of its own"


def _queued(topic: str, payload: bytes, one: Parsed) -> Parsed:
    raw = Raw(topic=topic, payload=payload, reason=NO_ARRIVAL)
    return Parsed(raw, None, NO_ARRIVAL, payload, detail=_QUEUED, mapping=one.mapping)


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
