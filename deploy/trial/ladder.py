"""The ladder of a trial: how far the device's first good message has come, and what holds it back. Pure.

    state = LadderState(...)
    state = step(state, MessageHeard(...), now_s)
    for rung in rungs(state, now_s): ...

Observations may come in any order and more than once. `now_s` is a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from waybill.settings import printable

# What is observed.


class Rung(StrEnum):
    HEARD = "heard"
    MAPPED = "mapped"
    STORED = "stored"
    ACKNOWLEDGED = "region acknowledged"
    TABLE = "in the centre's table"
    FENCE = "fence entered"
    ALERT = "alert"
    DRAFT = "draft line"


class Component(StrEnum):
    """A process on the way of a record, and how a user is told about it."""

    STACK = "local stack"
    AGENT = "edge-agent"
    GATEWAY = "fleet-gateway"
    ALERTS = "fleet-gateway alerts"
    CENTRE = "jobs of the centre"
    BILL = "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHeard:
    """A message on the vehicle's broker. `is_read`: the agent subscribes to its topic. `near`: the nearest topic that
    it reads.

    `kinds`: the records that the message becomes. `malformed`, `detail`: why it is raw, or "". `lag_s`: how far the
    time of its newest record lies behind this machine's clock; None without a time.
    """

    topic: str
    is_read: bool = True
    near: str = ""
    kinds: tuple[str, ...] = ()
    malformed: str = ""
    detail: str = ""
    sample: str = ""
    lag_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSeen:
    """The agent's status. `problem`: of its certificate or its uplink, or ""."""

    head: int
    acknowledged: int
    uplink: str = ""
    certificate_problem: str = ""
    uplink_problem: str = ""


@dataclass(frozen=True, slots=True)
class RecordsStored:
    """Records of the device in the centre's table: their number, and the highest seq."""

    count: int
    newest: int


@dataclass(frozen=True, slots=True)
class FenceEntered:
    """Entries into the fence that the centre metered."""

    place: str
    entries: int


@dataclass(frozen=True, slots=True)
class AlertRaised:
    """An alert of the region. `after_s`: from the arrival in the region."""

    kind: str
    after_s: float


@dataclass(frozen=True, slots=True)
class LineDrafted:
    """The lines of the draft of a period. `agrees`: whether each amount was computed again from the records, and is the
    same; `doubt`: what differs, or "".
    """

    lines: tuple[str, ...]
    net: str
    agrees: bool | None
    period: str = ""
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class ComponentSeen:
    """A component is ready, or what is wrong with it and the next command."""

    component: Component
    is_ready: bool
    why: str = ""
    command: str = ""


Observation = MessageHeard | AgentSeen | RecordsStored | FenceEntered | AlertRaised | LineDrafted | ComponentSeen


# What the ladder knows.


class Reached(NamedTuple):
    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderState:
    """`line`: the command that sends a message. `token_command`: the one that issues another token. `map_command`: the
    one that shows what a mapping makes of a message. `bill_command`: the one that finds the table that was changed.

    `alert_age_s`: older events raise no alert. `since_s`: when the vehicle's broker was ready.
    """

    line: str
    token_command: str = ""
    map_command: str = ""
    bill_command: str = ""
    reads: str = "vehicle/#"
    alert_age_s: float = 300.0
    is_track: bool = False
    """Messages are a track of the past: their age is no fault of a clock."""
    since_s: float = 0.0
    ready_s: float = 0.0
    """When the last component became ready."""
    heard_s: float | None = None
    reached: Mapping[Rung, Reached] = field(default_factory=dict)
    refused: MessageHeard | None = None
    heard: MessageHeard | None = None
    agent: AgentSeen | None = None
    head_before: int = 0
    """The agent's head when the message came: of an earlier run of the same buffer."""
    components: Mapping[Component, ComponentSeen] = field(default_factory=dict)
    is_unequal: bool = False
    """Whether the newest draft, computed again from the records, is another one."""

    @property
    def is_complete(self) -> bool:
        return len(self.reached) == len(Rung)

    @property
    def complete_s(self) -> float | None:
        """When the last rung was reached; None: one is not."""
        return max(one.at_s for one in self.reached.values()) if self.is_complete else None


class RungView(NamedTuple):
    """A rung to show. `after_s`: from the message; None: not reached. `why`: what it waits for, or what is doubtful.

    `is_stuck`: it does not come by itself; `command`: the way out, or "".
    """

    rung: Rung
    after_s: float | None
    text: str = ""
    why: str = ""
    command: str = ""
    is_stuck: bool = False


# (state, observation) -> state


def step(state: LadderState, seen: Observation, now_s: float) -> LadderState:
    match seen:
        case MessageHeard():
            state = _heard(state, seen, now_s)
        case AgentSeen():
            state = _agent(state, seen, now_s)
        case RecordsStored(count, newest):
            plural = "record" if count == 1 else "records"
            state = _reach(state, Rung.TABLE, f"{count} {plural}, the newest has seq {newest}", now_s)
        case FenceEntered(place, entries):
            state = _reach(
                state, Rung.FENCE, f"{place}: {entries} {'entry' if entries == 1 else 'entries'} metered", now_s
            )
        case AlertRaised(kind, after_s):
            text = f"{kind}, raised {after_s:.2f} s after the region had the fix"
            state = _reach(state, Rung.ALERT, text, now_s)
        case LineDrafted():
            state = _drafted(state, seen, now_s)
        case ComponentSeen():
            before = state.components.get(seen.component)
            if seen.is_ready and (before is None or not before.is_ready):
                state = replace(state, ready_s=now_s)
            state = replace(state, components={**state.components, seen.component: seen})
    return state


def _reach(state: LadderState, rung: Rung, text: str, now_s: float, *, again: bool = False) -> LadderState:
    before = state.reached.get(rung)
    if before is not None and not again:
        return state
    return replace(state, reached={**state.reached, rung: Reached(before.at_s if before else now_s, text)})


def _heard(state: LadderState, seen: MessageHeard, now_s: float) -> LadderState:
    if Rung.MAPPED in state.reached:
        return state
    if not seen.is_read:
        return replace(state, refused=seen)
    if seen.malformed or not seen.kinds:
        state = replace(state, refused=seen, heard_s=now_s if state.heard_s is None else state.heard_s)
        return _reach(state, Rung.HEARD, printable(seen.topic), now_s)
    # from here on the ladder is about this message
    head = 0 if state.agent is None else state.agent.head
    reached = {Rung.HEARD: Reached(now_s, printable(seen.topic)), Rung.MAPPED: Reached(now_s, _kinds_text(seen))}
    return replace(state, heard=seen, heard_s=now_s, refused=None, reached=reached, head_before=head)


def _kinds_text(seen: MessageHeard) -> str:
    counts = {kind: seen.kinds.count(kind) for kind in dict.fromkeys(seen.kinds)}
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items())


def _agent(state: LadderState, seen: AgentSeen, now_s: float) -> LadderState:
    state = replace(state, agent=seen)
    if Rung.MAPPED not in state.reached:
        return state
    # the poll may have seen the new head before the message was heard here
    is_new = seen.head > state.head_before or (seen.head > 0 and now_s - (state.heard_s or now_s) > _SETTLED_S)
    if is_new:
        state = _reach(state, Rung.STORED, f"as seq {seen.head} in the agent's buffer", now_s)
    if Rung.STORED in state.reached and seen.acknowledged >= seen.head > 0:
        state = _reach(state, Rung.ACKNOWLEDGED, f"up to seq {seen.head}", now_s)
    return state


def _drafted(state: LadderState, seen: LineDrafted, now_s: float) -> LadderState:
    if not seen.lines:
        return state
    state = replace(state, is_unequal=seen.agrees is False)
    if seen.agrees is True:
        # it grows with each run of the jobs
        headline = f"net {seen.net} for {seen.period} so far, provisional, computed twice, equal"
        return _reach(state, Rung.DRAFT, "\n".join((headline, *seen.lines)), now_s, again=True)
    reached = {**state.reached}
    reached.pop(Rung.DRAFT, None)
    why = f"computed twice, NOT EQUAL: {seen.doubt}" if state.is_unequal else "it was not computed again yet"
    bill = ComponentSeen(Component.BILL, False, why, state.bill_command if state.is_unequal else "")
    return replace(state, reached=reached, components={**state.components, Component.BILL: bill})


# state -> rungs

_STARTS: Final = " is starting"
_SETTLED_S: Final = 2.0
_SILENT_S: Final = 20.0
"""So long nothing is called stuck that may still come."""
_BATCH_S: Final = 60.0
"""The first micro-batch of a Spark that was just started takes longer."""
_BEFORE: Final[Mapping[Rung, tuple[Rung, ...]]] = {
    Rung.HEARD: (),
    Rung.MAPPED: (Rung.HEARD,),
    Rung.STORED: (Rung.MAPPED,),
    Rung.ACKNOWLEDGED: (Rung.STORED,),
    Rung.TABLE: (Rung.ACKNOWLEDGED,),
    Rung.FENCE: (Rung.TABLE,),
    Rung.ALERT: (Rung.ACKNOWLEDGED,),
    Rung.DRAFT: (Rung.TABLE,),
}
_WAITS_FOR: Final[Mapping[Rung, tuple[Component, ...]]] = {
    Rung.STORED: (Component.AGENT,),
    Rung.ACKNOWLEDGED: (Component.STACK, Component.GATEWAY),
    Rung.TABLE: (Component.STACK, Component.CENTRE),
    Rung.FENCE: (Component.CENTRE,),
    Rung.ALERT: (Component.ALERTS,),
    Rung.DRAFT: (Component.CENTRE, Component.BILL),
}


def rungs(state: LadderState, now_s: float) -> Iterator[RungView]:
    """Every rung in order. Only rungs whose turn has come say why they wait."""
    for rung in Rung:
        reached = state.reached.get(rung)
        if reached is not None:
            after_s = reached.at_s - (state.heard_s if state.heard_s is not None else reached.at_s)
            yield RungView(rung, max(after_s, 0.0), reached.text, *_doubt(state, rung))
        elif all(one in state.reached for one in _BEFORE[rung]):
            why, command = _why(state, rung, now_s)
            yield RungView(rung, None, "", why, command, is_stuck=why != "" and not why.endswith(_STARTS))
        else:
            yield RungView(rung, None)


def _doubt(state: LadderState, rung: Rung) -> tuple[str, str]:
    """What a user should know about a rung that was reached."""
    if rung is Rung.MAPPED and state.heard is not None and (fault := _clock_fault(state, state.heard)):
        return fault, _CLOCK
    return "", ""


_CLOCK: Final = "timedatectl status   # on the device; send a fresh time, such as $(date +%s%3N)"


def _clock_fault(state: LadderState, heard: MessageHeard) -> str:
    lag_s = heard.lag_s
    if lag_s is None or state.is_track or abs(lag_s) <= state.alert_age_s:
        return ""
    side = "behind" if lag_s > 0 else "ahead of"
    return f"its time is {_span(abs(lag_s))} {side} this machine's clock: no alert, and perhaps another day on the bill"


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _why(state: LadderState, rung: Rung, now_s: float) -> tuple[str, str]:
    """Why a rung is not reached and the next command; two empty texts while it may come by itself."""
    if rung in {Rung.HEARD, Rung.MAPPED}:
        return _why_not_read(state, rung, now_s)
    if (known := _known_fault(state, rung)) is not None:
        return known
    # what has just started needs a moment
    if now_s - max(_turn_s(state, rung), state.ready_s) < (_BATCH_S if rung in {Rung.TABLE, Rung.DRAFT} else _SILENT_S):
        return "", ""
    if rung in {Rung.FENCE, Rung.ALERT}:
        return _why_not_entered(state, rung)
    if rung is Rung.ACKNOWLEDGED and state.agent is not None and state.agent.uplink != "acknowledges":
        problem = state.agent.uplink_problem or f"uplink {state.agent.uplink}"
        return f"the region does not acknowledge: {printable(problem)}", ""
    return "nothing is known to be wrong; this machine may be busy", ""


def _known_fault(state: LadderState, rung: Rung) -> tuple[str, str] | None:
    """What a component says, or the clock: it need not be waited for."""
    if rung is Rung.ACKNOWLEDGED and state.agent is not None and (problem := state.agent.certificate_problem):
        return f"the device is not enrolled: {printable(problem)}", state.token_command
    for component in _WAITS_FOR[rung]:
        seen = state.components.get(component)
        if seen is not None and not seen.is_ready:
            return f"{component}: {printable(seen.why)}" if seen.why else f"{component}{_STARTS}", seen.command
    if rung is Rung.ALERT and state.heard is not None and (fault := _clock_fault(state, state.heard)):
        return f"no alert is raised for an event older than {state.alert_age_s:.0f} s: {fault}", _CLOCK
    return None


def _turn_s(state: LadderState, rung: Rung) -> float:
    """When the turn of a rung came."""
    return max((state.reached[one].at_s for one in _BEFORE[rung]), default=state.since_s)


def _why_not_read(state: LadderState, rung: Rung, now_s: float) -> tuple[str, str]:
    refused = state.refused
    if refused is None:
        is_late = now_s - state.since_s >= _SILENT_S
        return ("no message has arrived", state.line) if is_late and rung is Rung.HEARD else ("", "")
    topic, sample = printable(refused.topic), printable(refused.sample)
    if not refused.is_read:
        meant = f"; did you mean {refused.near}?" if refused.near else ""
        return f"wrong topic: {topic} was heard; the agent reads {state.reads}{meant}", state.line
    reason, way_out = _REASONS.get(refused.malformed, (f"it cannot be read ({printable(refused.malformed)})", ""))
    detail = f", {printable(refused.detail)}" if refused.detail else ""
    meant = f"; did you mean {refused.near}?" if refused.near else ""
    if refused.malformed.startswith(_OF_MAPPING):
        way_out = state.map_command
    return f"{topic}: {reason}{detail}{meant}: {sample}", way_out or state.line


_OF_MAPPING: Final = "mapping:"
_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "no-json": ("bad JSON", ""),
    "no-object": ("no JSON object", ""),
    "unknown-topic": ("the agent stores it raw, because it reads no topic like this", ""),
    "misspelt-topic": ("wrong topic, stored raw", ""),
    "no-time": ("`time` is missing", ""),
    "no-fix": ("the receiver has no fix yet", ""),
    "time-in-seconds": ("`time` is in seconds; the agent needs milliseconds", ""),
    "time-without-offset": ("`time` has no offset: end it with Z or +01:00", ""),
    "time-not-read": ("`time` is neither milliseconds nor ISO 8601", ""),
    "impossible-time": ("`time` is outside of 1970 to 2100", ""),
    "impossible-position": ("latitude or longitude is out of range", ""),
    "wrong-fields": ("a member is missing or of the wrong kind", ""),
}


def _why_not_entered(state: LadderState, rung: Rung) -> tuple[str, str]:
    if state.is_track:
        if rung is Rung.ALERT and Rung.FENCE in state.reached:
            return f"the entry lies more than {state.alert_age_s:.0f} s before the end of the track", state.line
        return "the track does not come from outside of the fence around its end", state.line
    if rung is Rung.ALERT and Rung.FENCE in state.reached:
        return "the region raised none: it learnt of the fence after the entry; drive out and in again", state.line
    return "the device was not seen outside of the fence and then inside: drive 400 m away and back", state.line
