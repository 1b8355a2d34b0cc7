"""One command's session with the device registry: what goes on is shown, and whatever fails is an exit status."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import typer

from waybill.identity.errors import MAX_ERROR_CHARACTERS
from waybill.identity.names import did_you_mean
from waybill.settings import printable

if TYPE_CHECKING:
    from waybill.identity.change_outcome import ChangeOutcome, DeviceOutcome
    from waybill.identity.operator_settings import OperatorSettings
    from waybill.identity.registry import DeviceEntry
    from waybill.identity.registry_messages import DevicePublication
    from waybill.identity.registry_session import RegistrySession


EXIT_UNREACHABLE, EXIT_ARGUMENTS, EXIT_REFUSED, EXIT_OUTRANKED, EXIT_NOT_CONFIRMED, EXIT_PARTLY_REFUSED = range(1, 7)


class Speaker(NamedTuple):
    """Which command speaks, and by which exit status it says that the registry was not reachable."""

    program: str
    unreachable: int = EXIT_UNREACHABLE


DEVICE: Final = Speaker("waybill device")


# The registry shown by a command: every device, and one with its history.


def show_devices(config: Path | None, tenant: str, *, as_json: bool, speaker: Speaker = DEVICE) -> None:
    """Every device of a tenant, or of all, and what no region has confirmed."""
    from waybill.identity.confirmations import CONFIRMATIONS_KEPT

    with command_session(config, tenant=tenant, signs=False, speaker=speaker) as (session, _):
        missing = session.not_confirmed(datetime.now(UTC) - CONFIRMATIONS_KEPT)
        chosen = _chosen(session, tenant, speaker)
        if as_json:
            facts = [device_facts(one, session.signed_by(one)) | confirmation(one.entry, missing) for one in chosen]
            lines = [json.dumps(facts, indent=2)]
        else:
            lines = [_listed(one, session.signed_by(one), missing) for one in chosen]
    # Behind the session: what shows its progress would stand on the same line.
    for line in lines:
        typer.echo(line)
    if missing is None:
        typer.echo(f"{speaker.program}: confirmations cannot be read: what is listed may not be in force", err=True)


def show_file(config: Path | None, tenant: str, *, speaker: Speaker) -> None:
    """The devices as a file has them."""
    with command_session(config, tenant=tenant, signs=False, speaker=speaker) as (session, _):
        chosen = _chosen(session, tenant, speaker)
    from waybill.identity.device_file import MAX_DEVICES, device_file_text

    if len(chosen) > MAX_DEVICES:
        many = f"{len(chosen):,} devices, and a command takes {MAX_DEVICES:,}: list each --tenant by itself, or cut it"
        typer.echo(f"{speaker.program}: {many}", err=True)
    sys.stdout.write(device_file_text(one.entry for one in chosen))


def show_device(device: str, config: Path | None, *, as_json: bool, speaker: Speaker = DEVICE) -> None:
    """A device, and each change of it that is still kept."""
    with command_session(config, names={device}, with_history=True, signs=False, speaker=speaker) as (session, _):
        known_entry(session, device)
        held = session.publication(device)
        assert held is not None, "it is known"
        past = session.history(device)
        if as_json:
            facts = {
                "device": device_facts(held, session.signed_by(held)),
                "history": [
                    device_facts(one, session.signed_by(one)) | {"outranked": outranked} for one, outranked in past
                ],
            }
            lines = [json.dumps(facts, indent=2)]
        else:
            lines = [device_line(held.entry, session.signed_by(held))]
            for one, outranked in past:
                mark = "OUTRANKED: " if outranked else ""
                lines.append(f"  {mark}{device_line(one.entry, session.signed_by(one))}  {one.entry.reason}")
    for line in lines:
        typer.echo(line)


def _listed(one: DevicePublication, signed_by: str, missing: Mapping[str, str] | None) -> str:
    why = (missing or {}).get(one.entry.name)
    return device_line(one.entry, signed_by) + (f"  NOT CONFIRMED: {printable(why)}" if why else "")


def _chosen(session: RegistrySession, tenant: str, speaker: Speaker) -> list[DevicePublication]:
    every = session.publications()
    chosen = [one for one in every if tenant in ("", one.entry.tenant)]
    if not chosen:
        typer.echo(f"{speaker.program}: {no_device_text(every, tenant)}", err=True)
    return chosen


# What `waybill device` answers: lines for people, JSON for programs, and an exit status for both.

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


_NO_STACK: Final = (
    "nothing listens at {}, which the settings of the local stack name: it is not running; `waybill up` starts it, and "
    "--config FILE names other settings"
)
_SOON_S: Final = 2.0
"""What takes less is shown on terminals alone."""


@contextmanager
def shows_progress(
    clock: Callable[[], float] = time.monotonic, program: str = DEVICE.program
) -> Iterator[Callable[[str, int], None]]:
    """What shows how far something is: on a terminal as it moves, else one line of each thing that takes a while."""
    from rich.console import Console

    console, began_s, said = Console(stderr=True), dict[str, float](), set[str]()

    def line(what: str, count: int) -> None:
        now_s = clock()
        if what not in said and now_s - began_s.setdefault(what, now_s) >= _SOON_S:
            said.add(what)
            typer.echo(f"{program}: {what}: {count:,} ...", err=True)

    if not console.is_terminal:
        yield line
        return
    with console.status("") as shown:
        yield lambda what, count: shown.update(f"{what}: {count:,}")


@contextmanager
def command_session(
    config: Path | None,
    key: Path | None = None,
    *,
    names: Collection[str] | None = None,
    tenant: str = "",
    with_history: bool = False,
    signs: bool = True,
    check: Callable[[OperatorSettings], None] = lambda _: None,
    as_json: bool = False,
    speaker: Speaker = DEVICE,
    facts: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[tuple[RegistrySession, OperatorSettings]]:
    """The session, and the settings. `signs`: whether it changes anything; else no key is needed.

    `tenant`: whose devices alone are read; "": every one's. `check` raises an IdentityError where the settings refuse
    what is asked: nothing is read then. `facts`: for programs, whatever fails; who calls may add to them.
    """
    from waybill.daemon.logs import LogSettings, start_logging
    from waybill.identity.errors import IdentityError, OperatorKeyRefused
    from waybill.identity.operator_settings import read_operator_settings
    from waybill.identity.registry_session import RegistrySession
    from waybill.identity.registry_topic import RegistryRefused, RegistryUnreachable
    from waybill.settings import SettingsError

    # What is printed is the answer; what goes wrong on the way is said beside it.
    start_logging(LogSettings(level="warning"))
    try:
        settings = read_operator_settings(config)
        if key is not None or not signs:
            settings = settings.model_copy(update={"key": key})
        check(settings)
        if config is None and not _listens(settings.service_url):
            # Else each client of the cluster would wait for its time-out.
            end(
                _NO_STACK.format(settings.service_url),
                speaker.unreachable,
                as_json=as_json,
                facts=facts,
                speaker=speaker,
            )
        with (
            shows_progress(program=speaker.program) as on_progress,
            RegistrySession(
                settings, names=names, tenant=tenant, with_history=with_history, on_progress=on_progress
            ) as session,
        ):
            yield session, settings
    except SettingsError as error:
        end("\n".join(error.lines), os.EX_CONFIG, as_json=as_json, facts=facts, speaker=speaker)
    except OperatorKeyRefused as error:
        end(str(error), os.EX_CONFIG if key is None else EXIT_ARGUMENTS, as_json=as_json, facts=facts, speaker=speaker)
    except RegistryRefused as error:
        end(str(error), EXIT_REFUSED, as_json=as_json, facts=facts, speaker=speaker)
    except RegistryUnreachable as error:
        end(str(error), speaker.unreachable, as_json=as_json, facts=facts, speaker=speaker)
    except IdentityError as error:
        end(str(error), EXIT_REFUSED, as_json=as_json, facts=facts, speaker=speaker)


def _listens(service_url: str) -> bool:
    """Whether anybody takes a connection at an address of this machine; of another machine it is not asked."""
    from waybill.pulsar.pulsar_address import each_host

    return any(map(_host_listens, each_host(service_url)))


def _host_listens(url: str) -> bool:
    address = urlsplit(url)
    if address.hostname not in {"127.0.0.1", "localhost", "::1"} or address.port is None:
        return True
    try:
        with socket.create_connection((address.hostname, address.port), _SOON_S):
            return True
    except OSError:
        return False


def outcome_of(publish: Callable[[], ChangeOutcome]) -> ChangeOutcome:
    """What became of a change, of one too that was cut short."""
    from waybill.identity.change_outcome import ChangeCutShort

    try:
        return publish()
    except ChangeCutShort as cut:
        return cut.outcome


def known_entry(session: RegistrySession, device: str, *, looks: bool = True) -> DeviceEntry:
    """The entry of a device. Raises ChangeRefused, with the name that may be meant, if it `looks` for that."""
    from waybill.identity.registry import ChangeRefused

    entry = session.get(device)
    if entry is None and (why := session.not_taken(device)):
        raise ChangeRefused(device, None, "", f"{device}: {why}")
    if entry is None:
        near = session.nearest(device) if looks else ""
        meant = f"did you mean {near}?" if near else "waybill device list shows those that there are"
        raise ChangeRefused(device, None, "", f"the registry has no device {device}: {meant}")
    return entry
