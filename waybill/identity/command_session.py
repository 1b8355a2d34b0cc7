"""One command of the device registry: its session, what it prints, and its exit status.

What is printed is for people, or JSON for programs; whatever fails is an exit status for both.
"""

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

from waybill.identity.names import did_you_mean
from waybill.settings import printable

if TYPE_CHECKING:
    from waybill.identity.operator_settings import OperatorSettings
    from waybill.identity.registry import DeviceEntry
    from waybill.identity.registry_messages import DevicePublication
    from waybill.identity.registry_session import ChangeOutcome, RegistrySession

EXIT_UNREACHABLE, EXIT_ARGUMENTS, EXIT_REFUSED, EXIT_SUPERSEDED, EXIT_UNCONFIRMED, EXIT_PARTLY_REFUSED = range(1, 7)
EXIT_INTERRUPTED: Final = 130
"""As a shell has it of whom SIGINT ended."""
_RESULTS: Final = {
    0: "done",
    EXIT_UNREACHABLE: "unreachable",
    EXIT_ARGUMENTS: "wrong-arguments",
    EXIT_REFUSED: "refused",
    EXIT_SUPERSEDED: "superseded",
    EXIT_UNCONFIRMED: "unconfirmed",
    EXIT_PARTLY_REFUSED: "partly-refused",
    os.EX_TEMPFAIL: "unreachable",
    EXIT_INTERRUPTED: "interrupted",
    os.EX_CONFIG: "wrong-settings",
}
_NO_KEY_THERE: Final = "; add your public key to that region's operators.toml: then it takes this change too"
_NO_STACK: Final = (
    "nothing listens at {}, which the settings of the local stack name: it is not running; `waybill up` starts it, and "
    "--config FILE names other settings"
)
_SOON_S: Final = 2.0
"""What takes less is shown on terminals alone."""


class Speaker(NamedTuple):
    """Which command speaks, and by which exit status it says that the registry was not reachable."""

    program: str
    unreachable: int = EXIT_UNREACHABLE


DEVICE: Final = Speaker("waybill device")


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
    revokes: str = "",
    check: Callable[[OperatorSettings], None] = lambda _: None,
    as_json: bool = False,
    speaker: Speaker = DEVICE,
) -> Iterator[tuple[RegistrySession, OperatorSettings]]:
    """The session, and the settings. `signs`: whether it changes anything; else no key is needed.

    `tenant`: whose devices alone are read; "": every one's. `check` raises an IdentityError where the settings refuse
    what is asked: nothing is read then. `revokes`: see RegistrySession.
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
            raise RegistryUnreachable(_NO_STACK.format(settings.service_url))
        with (
            shows_progress(program=speaker.program) as on_progress,
            RegistrySession(
                settings,
                names=names,
                tenant=tenant,
                with_history=with_history,
                revokes=revokes,
                on_progress=on_progress,
            ) as session,
        ):
            yield session, settings
    except SettingsError as error:
        end("\n".join(error.lines), os.EX_CONFIG, as_json=as_json, speaker=speaker)
    except IdentityError as error:
        status = EXIT_REFUSED
        if isinstance(error, OperatorKeyRefused):
            status = os.EX_CONFIG if key is None else EXIT_ARGUMENTS
        elif isinstance(error, RegistryUnreachable) and not isinstance(error, RegistryRefused):
            status = speaker.unreachable
        end(str(error), status, as_json=as_json, speaker=speaker)


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


def end(text: str, status: int, *, as_json: bool = False, speaker: Speaker = DEVICE) -> NoReturn:
    """The command ends, and why."""
    if as_json:
        typer.echo(json.dumps({"result": _RESULTS[status], "why": text}, indent=2))
    else:
        typer.echo(printable(f"{speaker.program}: {text}", "\n"), err=True)
    raise typer.Exit(status)


def say_outcome(
    outcome: ChangeOutcome,
    wait_s: float,
    *,
    as_json: bool,
    more: Mapping[str, object] = MappingProxyType({}),
    speaker: Speaker = DEVICE,
) -> None:
    """What became of a change, device by device; where not all is done the command ends. `more`: facts for programs."""
    problems = [*_problems(outcome, wait_s, speaker)]
    if as_json:
        why = "; ".join(text for _, text in problems)
        facts = {"result": _RESULTS[problems[0][0] if problems else 0], "why": why, **_outcome_facts(outcome), **more}
        typer.echo(json.dumps(facts, indent=2))
    else:
        _say_devices(outcome, speaker)
        for _, text in problems:
            typer.echo(printable(f"{speaker.program}: {text}"), err=True)
    if problems:
        raise typer.Exit(problems[0][0])


def _problems(outcome: ChangeOutcome, wait_s: float, speaker: Speaker) -> Iterator[tuple[int, str]]:
    """Exit status and text of each thing that is not as it was asked for, the worst first; none hides another."""
    from waybill.identity.registry_session import Outcome

    superseded, unconfirmed, refused = (
        outcome.names(one) for one in (Outcome.SUPERSEDED, Outcome.UNCONFIRMED, Outcome.REFUSED)
    )
    count = len(outcome.devices)
    if outcome.cut_short:
        yield EXIT_INTERRUPTED if outcome.is_interrupted else speaker.unreachable, outcome.cut_short
    if superseded:
        yield EXIT_SUPERSEDED, f"{len(superseded)} of {count} changes superseded: run `waybill device show`, and retry"
    if unconfirmed and not outcome.cut_short:
        where = f" in {', '.join(outcome.missing)}" if outcome.missing else ""
        advice = _NO_KEY_THERE if "unknown-key" in "".join(outcome.devices[one].why for one in unconfirmed) else ""
        text = f"{len(unconfirmed)} of {count} changes not confirmed{where} after {wait_s:g} s{advice}"
        yield EXIT_UNCONFIRMED, text
    if refused and not outcome.cut_short:
        # Behind the others: that a revocation is not in force is worse than that one was not asked for rightly.
        done = count - len(refused)
        yield EXIT_PARTLY_REFUSED if done else EXIT_REFUSED, f"{len(refused)} refused, {done} done"


def _outcome_facts(outcome: ChangeOutcome) -> dict[str, object]:
    published = outcome.published.values()
    return {
        "devices": [json.loads(one.entry.model_dump_json()) | {"id": one.publication_id} for one in published],
        "outcomes": {
            name: {"outcome": str(one.outcome), "why": one.why, "missing": [*one.missing]}
            for name, one in outcome.devices.items()
        },
        "confirmed": [*outcome.confirmed],
        "missing": [*outcome.missing],
        "unlisted": [*outcome.unlisted],
    }


def _say_devices(outcome: ChangeOutcome, speaker: Speaker) -> None:
    """Each device in a line, with what is not as it was asked for; what is as it was and is to be has none."""
    for name, one in outcome.devices.items():
        mark = "" if one.outcome == "done" else f"  {one.outcome.upper()}: {one.why}"
        if one.outcome == "refused":
            typer.echo(printable(f"{speaker.program}: {name}: {one.why}"), err=True)
        elif (made := outcome.published.get(name)) is not None:
            entry = made.entry
            typer.echo(printable(f"{name}: {entry.state}, version {entry.version} ({made.publication_id}){mark}"))
            for line in _advice(entry) if not mark else ():
                typer.echo(f"  {line}")
        elif mark:
            typer.echo(printable(f"{name}:{mark}"))
    if outcome.confirmed and not outcome.missing:
        typer.echo(printable(f"confirmed: {', '.join(outcome.confirmed)}"))
    if outcome.unlisted:
        regions = ", ".join(outcome.unlisted)
        typer.echo(printable(f"{speaker.program}: `regions` of the settings lacks {regions}: add it there"), err=True)


def _advice(entry: DeviceEntry) -> Iterator[str]:
    """What a device needs next, with the command for it."""
    if entry.claim is not None and entry.claim.until is not None and entry.state == "expected":
        yield f"its token is valid until {entry.claim.until:%Y-%m-%dT%H:%M:%SZ}"
    place = f"{entry.name} --region {entry.region}"
    if entry.was_never_enrolled:
        again = f"waybill device expect {place} --again --token-file FILE --reason WHY"
        yield f"it was never enrolled, and its claim is used up: {again} gives it another one"
    if entry.state == "active" and entry.claim is None and not entry.certificates:
        yield f"it may connect at once, with a certificate by hand: waybill pki device {place} --out FOLDER"


# The registry as tables: all devices, and one device with its history.


def show_devices(config: Path | None, tenant: str, *, as_json: bool, speaker: Speaker = DEVICE) -> None:
    """Every device of a tenant, or of all, and what no region has confirmed."""
    from waybill.identity.confirmations import CONFIRMATIONS_KEPT

    with command_session(config, tenant=tenant, signs=False, speaker=speaker) as (session, _):
        missing = session.not_confirmed(datetime.now(UTC) - CONFIRMATIONS_KEPT)
        why = missing or {}
        chosen = [(one.entry.name, one, session.signed_by(one)) for one in _chosen(session, tenant, speaker)]
    # Behind the session: what shows its progress would stand on the same line.
    if as_json:
        facts = [
            _device_facts(one, by) | {"confirmed": None if missing is None else name not in why, "why": why.get(name)}
            for name, one, by in chosen
        ]
        typer.echo(json.dumps(facts, indent=2))
    else:
        for name, one, by in chosen:
            mark = f"  NOT CONFIRMED: {printable(why[name])}" if name in why else ""
            typer.echo(device_line(one.entry, by) + mark)
    if missing is None:
        typer.echo(f"{speaker.program}: confirmations cannot be read: what is listed may not be in force", err=True)


def show_file(config: Path | None, tenant: str, *, speaker: Speaker) -> None:
    """The devices as a file has them."""
    with command_session(config, tenant=tenant, signs=False, speaker=speaker) as (session, _):
        chosen = _chosen(session, tenant, speaker)
    from waybill.identity.device_files import MAX_DEVICES, device_file_text

    if len(chosen) > MAX_DEVICES:
        many = f"{len(chosen):,} devices, and a command takes {MAX_DEVICES:,}: list each --tenant by itself, or cut it"
        typer.echo(f"{speaker.program}: {many}", err=True)
    sys.stdout.write(device_file_text(one.entry for one in chosen))


def show_device(device: str, config: Path | None, *, as_json: bool, speaker: Speaker = DEVICE) -> None:
    """A device, and each change of it that is still kept."""
    with command_session(config, names={device}, with_history=True, signs=False, speaker=speaker) as (session, _):
        session.known(device)
        held = session.publication(device)
        assert held is not None, "it is known"
        past = [(one, session.signed_by(one), outranked) for one, outranked in session.history(device)]
        by = session.signed_by(held)
    if as_json:
        history = [_device_facts(one, signer) | {"outranked": outranked} for one, signer, outranked in past]
        typer.echo(json.dumps({"device": _device_facts(held, by), "history": history}, indent=2))
        return
    typer.echo(device_line(held.entry, by))
    for one, signer, outranked in past:
        mark = "OUTRANKED: " if outranked else ""
        typer.echo(f"  {mark}{device_line(one.entry, signer)}  {one.entry.reason}")


def _chosen(session: RegistrySession, tenant: str, speaker: Speaker) -> Sequence[DevicePublication]:
    every = session.publications()
    chosen = [one for one in every if tenant in ("", one.entry.tenant)]
    if not every:
        typer.echo(
            f"{speaker.program}: the registry has no device yet: register one with `waybill device expect`", err=True
        )
    elif not chosen:
        tenants = sorted({one.entry.tenant for one in every})
        there = f"{did_you_mean(tenant, tenants)}it has those of {', '.join(tenants):.300}"
        typer.echo(f"{speaker.program}: the registry has no device of {tenant!r}: {there}", err=True)
    return chosen


def _device_facts(publication: DevicePublication, signed_by: str) -> dict[str, Any]:
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
