"""What `waybill device` answers: lines for people, JSON for programs, and an exit status for both."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import typer

from waybill.identity.errors import MAX_ERROR_CHARACTERS
from waybill.identity.nearest import did_you_mean
from waybill.settings import printable

if TYPE_CHECKING:
    from waybill.identity.change_outcome import ChangeOutcome, DeviceOutcome
    from waybill.identity.registry import DeviceEntry
    from waybill.identity.registry_messages import DevicePublication

__all__ = [
    "DEVICE",
    "EXIT_ARGUMENTS",
    "EXIT_NOT_CONFIRMED",
    "EXIT_OUTRANKED",
    "EXIT_PARTLY_REFUSED",
    "EXIT_REFUSED",
    "EXIT_UNREACHABLE",
    "Speaker",
    "confirmation",
    "device_facts",
    "device_line",
    "end",
    "end_refused",
    "no_device_text",
    "refusals",
    "say_outcome",
]

EXIT_UNREACHABLE, EXIT_ARGUMENTS, EXIT_REFUSED, EXIT_OUTRANKED, EXIT_NOT_CONFIRMED, EXIT_PARTLY_REFUSED = range(1, 7)
EXIT_INTERRUPTED: Final = 130
"""As a shell has it of whom SIGINT ended."""
_RESULTS: Final = {
    0: "done",
    EXIT_UNREACHABLE: "unreachable",
    EXIT_ARGUMENTS: "wrong-arguments",
    EXIT_REFUSED: "refused",
    EXIT_OUTRANKED: "outranked",
    EXIT_NOT_CONFIRMED: "not-confirmed",
    EXIT_PARTLY_REFUSED: "partly-refused",
    os.EX_TEMPFAIL: "unreachable",
    EXIT_INTERRUPTED: "interrupted",
    os.EX_CONFIG: "wrong-settings",
}
_QUIET: Final = {"published", "confirmed", "as-it-is", "refused"}
_NO_KEY_THERE = "add your public key to that region's operators.toml: then it takes this change too"


class Speaker(NamedTuple):
    """Which command speaks, and by which exit status it says that the registry was not reachable."""

    program: str
    unreachable: int = EXIT_UNREACHABLE


DEVICE: Final = Speaker("waybill device")


def say_outcome(
    outcome: ChangeOutcome,
    wait_s: float,
    *,
    as_json: bool,
    more: Mapping[str, object] = MappingProxyType({}),
    speaker: Speaker = DEVICE,
) -> None:
    """What became of a change, device by device; of what is not done the command ends. `more`: facts for programs."""
    refused = [*_refused_before(more), *_refused(outcome)]
    problems = [*_problems(outcome, wait_s, len(refused), speaker)]
    if as_json:
        facts = _outcome_facts(outcome) | dict(more)
        if refused or "refused" in more:
            facts["refused"] = refused
        typer.echo(_result(problems[0][0] if problems else 0, "; ".join(text for _, text in problems), facts))
    else:
        _say_devices(outcome, speaker)
        for _, text in problems:
            typer.echo(printable(f"{speaker.program}: {text}"), err=True)
    if problems:
        raise typer.Exit(problems[0][0])


def _problems(outcome: ChangeOutcome, wait_s: float, refused: int, speaker: Speaker) -> Iterator[tuple[int, str]]:
    """Exit status and text of each thing that is not as it was asked for, the worst first; none hides another."""
    published = len(outcome.publications)
    if outcome.cut_short:
        yield EXIT_INTERRUPTED if outcome.is_interrupted else speaker.unreachable, outcome.cut_short
    if not outcome.holds and not outcome.cut_short:
        count = len(outcome.names("outranked", "unknown"))
        why = "somebody changed them at the same moment, and that change holds, or they did not come back"
        yield EXIT_OUTRANKED, f"{count} of {len(outcome.devices)} not known to hold: {why}: look, and ask again"
    if outcome.missing:
        advice = f" ({_NO_KEY_THERE})" if "unknown-key" in outcome.why else ""
        where = f"in force in {', '.join(outcome.confirmed)} alone" if outcome.confirmed else "not in force everywhere"
        yield EXIT_NOT_CONFIRMED, f"{where} after {wait_s:g} s: {outcome.why}{advice}"
    # Behind the others: that a revocation is not in force is worse than that one was not asked for rightly.
    if refused:
        yield EXIT_PARTLY_REFUSED if published else EXIT_REFUSED, f"{refused} refused, {published} done"


def _refused_before(more: Mapping[str, object]) -> list[Mapping[str, str]]:
    """Those that were refused before anything was published."""
    refused = more.get("refused", [])
    assert isinstance(refused, list), "each by itself"
    return refused


def _refused(outcome: ChangeOutcome) -> list[Mapping[str, str]]:
    """Those that were refused at their turn."""
    return [{"device": name, "why": outcome.devices[name].why} for name in outcome.names("refused")]


def _outcome_facts(outcome: ChangeOutcome) -> dict[str, object]:
    devices = [json.loads(one.entry.model_dump_json()) | {"id": one.publication_id} for one in outcome.publications]
    became = {
        name: {"outcome": str(one.became), "why": one.why, "missing": [*one.missing]}
        for name, one in outcome.devices.items()
    }
    facts: dict[str, object] = {"devices": devices, "outcomes": became, "confirmed": [*outcome.confirmed]}
    return facts | {"missing": [*(outcome.missing or ())], "unlisted": [*outcome.unlisted]}


def _say_devices(outcome: ChangeOutcome, speaker: Speaker) -> None:
    """Each device in a line, with what is not as it was asked for; what is as it was and is to be has none."""
    published = {one.entry.name for one in outcome.publications}
    for one in outcome.publications:
        entry, mark = one.entry, _mark(outcome.devices.get(one.entry.name))
        typer.echo(printable(f"{entry.name}: {entry.state}, version {entry.version} ({one.publication_id}){mark}"))
        for line in () if "OUTRANKED" in mark else _advice(entry):
            typer.echo(f"  {line}")
    for name, became in outcome.devices.items():
        if name not in published and (mark := _mark(became)):
            typer.echo(printable(f"{name}:{mark}"))
    if outcome.holds and outcome.confirmed and not outcome.missing:
        typer.echo(printable(f"confirmed: {', '.join(outcome.confirmed)}"))
    if outcome.unlisted:
        regions = ", ".join(outcome.unlisted)
        typer.echo(printable(f"{speaker.program}: `regions` of the settings lacks {regions}: add it there"), err=True)
    for name in outcome.names("refused"):
        typer.echo(printable(f"{speaker.program}: {name}: {outcome.devices[name].why}"), err=True)


def _mark(one: DeviceOutcome | None) -> str:
    """What is to be seen of a device at once."""
    if one is None or one.became in _QUIET:
        return ""
    return f"  {one.became.replace('-', ' ').upper()}: {one.why}"


def _advice(entry: DeviceEntry) -> Iterator[str]:
    """What a device needs next, with the command for it."""
    if entry.claim is not None and entry.claim.until is not None and entry.state == "expected":
        yield f"its token is good until {entry.claim.until:%Y-%m-%dT%H:%M:%SZ}"
    place = f"{entry.name} --region {entry.region}"
    if entry.was_never_enrolled:
        again = f"waybill device expect {place} --again --token-file FILE --reason WHY"
        yield f"it was never enrolled, and its claim is closed: {again} gives it another one"
    if entry.state == "active" and entry.claim is None and not entry.certificates:
        yield f"it may connect at once, with a certificate by hand: waybill pki device {place} --out FOLDER"


def end(
    text: str,
    status: int,
    *,
    as_json: bool = False,
    facts: Mapping[str, object] | None = None,
    speaker: Speaker = DEVICE,
) -> NoReturn:
    """The command ends, and why."""
    if as_json:
        typer.echo(_result(status, text, facts or {}))
    else:
        typer.echo(printable(f"{speaker.program}: {text}", "\n"), err=True)
    raise typer.Exit(status)


def refusals(refused: Mapping[str, Exception], *, as_json: bool) -> dict[str, object]:
    """The devices that were refused, for programs; for people each is printed here."""
    if not as_json:
        for why in refused.values():
            typer.echo(printable(f"{DEVICE.program}: {why}"), err=True)
    return {"refused": [{"device": name, "why": str(why)} for name, why in refused.items()]}


def end_refused(refused: Mapping[str, Exception], *, as_json: bool) -> NoReturn:
    """The command ends: each of its devices was refused, and nothing was changed."""
    facts = refusals(refused, as_json=as_json)
    if as_json:
        reasons = [str(why) for why in refused.values()]
        typer.echo(_result(EXIT_REFUSED, "; ".join(reasons)[:MAX_ERROR_CHARACTERS], facts))
    raise typer.Exit(EXIT_REFUSED)


def device_facts(publication: DevicePublication, signed_by: str) -> dict[str, Any]:
    """A device for programs."""
    entry = publication.entry
    facts = json.loads(entry.model_dump_json())
    return {**facts, "never_enrolled": entry.was_never_enrolled, "signed_by": signed_by}


def device_line(entry: DeviceEntry, signed_by: str = "") -> str:
    """A device for people.

    `signed_by` beside who the entry says: the first is proven, the second is what was written.
    """
    more = f" -> {entry.successor}" if entry.successor else ""
    changed = f"{entry.changed_at:%Y-%m-%dT%H:%M:%SZ} by {entry.changed_by}"
    if signed_by not in ("", entry.changed_by):
        changed += f", signed by {signed_by}"
    if entry.was_never_enrolled:
        more += " (never enrolled)"
    return f"{entry.name}  {entry.state}{more}  version {entry.version}  {entry.region}  {changed}"


def no_device_text(every: Sequence[DevicePublication], tenant: str) -> str:
    """That a list has nothing, and what may have been meant."""
    if not every:
        return "the registry has no device yet: waybill device expect makes one known"
    tenants = sorted({one.entry.tenant for one in every})
    there = f"it has those of {', '.join(tenants):.300}"
    return f"the registry has no device of {tenant!r}: {did_you_mean(tenant, tenants)}{there}"


def confirmation(entry: DeviceEntry, missing: Mapping[str, str] | None) -> dict[str, str | bool | None]:
    """Whether all regions have confirmed a device's last change; None: nobody knows."""
    return {"confirmed": None if missing is None else entry.name not in missing, "why": (missing or {}).get(entry.name)}


def _result(status: int, why: str, facts: Mapping[str, object]) -> str:
    return json.dumps({"result": _RESULTS[status], "why": why, **facts}, indent=2)
