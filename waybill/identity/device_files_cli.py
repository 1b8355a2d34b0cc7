"""`waybill reference devices`: check, publish and compare device files; list the registry and its history.

Exit status: 0; 1 a file has a fault, or `diff` shows a change; 2 wrong arguments; 3 refused by the cluster or the
settings: nothing was changed; 4 superseded: published, but another change with the same time is in force;
5 unconfirmed: a region refuses a state of the file or has not confirmed it in time; 6 some devices changed meanwhile
and were refused, and the others are done; 75 the registry is not reachable, or the connection was lost; 78 wrong
settings; 130 interrupted, with a list of what was published.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from waybill.identity.command_options import AsJson, Config, Device, Key, LockWait, Reason, TokenDays
from waybill.identity.command_session import (
    EXIT_REFUSED,
    Speaker,
    command_session,
    say_outcome,
    show_device,
    show_devices,
    show_file,
)
from waybill.settings import printable_json

if TYPE_CHECKING:
    from waybill.identity.device_files import DeviceFileFault, JudgedDevice, PlacedDevice
    from waybill.identity.registry import Claim, DeviceChange
    from waybill.identity.registry_session import RegistrySession
    from waybill.identity.token_files import TokenFiles

EXIT_FAULT: Final = 1
_SPEAKER: Final = Speaker("waybill reference", os.EX_TEMPFAIL)
_WAIT_S: Final = 10.0
_NOT_PUBLISHED: Final = (EXIT_FAULT, 2, EXIT_REFUSED, os.EX_CONFIG)

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Check, publish and show files of devices. `reference check devices FILE` is the same.",
)
Registry = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Compare the files with the registry of these operator settings."),
]
Files = Annotated[list[Path], typer.Argument(help="TOML with [[device]].")]


@app.command()
def check(files: Files, *, config: Registry = None, as_json: AsJson = False) -> None:
    """Check device files and list each fault with file and line.

    With --config, also compare them with the registry and list changes that a device's state does not allow.

    Exit status: 0 if the files can be published, 1 when they have a fault, 75 when the registry is not reachable.

    Example: waybill reference devices check devices.toml --config operator.toml
    """
    # Whoever writes a file need not have a way to the registry.
    if config is None:
        from waybill.identity.device_files import serials_given_twice

        placed = _read(files, as_json=as_json)
        _end_of_faults([*serials_given_twice(placed, {}).values()], as_json=as_json)
        _say([], [f"right by themselves, not held against the registry: {_count(len(placed))}"], as_json=as_json)
        return
    changes = _against_registry(files, config, as_json=as_json)
    _say([], [f"right: {_count(len(changes))}; {_summary(changes)}"], as_json=as_json)


@app.command()
def diff(files: Files, *, config: Config = None, as_json: AsJson = False) -> None:
    """Compare device files with the registry, device by device.

    Exit status: 0 no change; 1 changes, or the files have a fault; 75 when the registry is not reachable.

    Example: waybill reference devices diff devices.toml --config operator.toml
    """
    changes = _against_registry(files, config, as_json=as_json)
    if as_json:
        _say([], [], as_json=True, devices=[_change_facts(one) for one in changes])
    else:
        for one in changes:
            typer.echo(f"{one.place}: {_change_text(one)}")
    if any(one.is_change for one in changes):
        raise typer.Exit(EXIT_FAULT)


@app.command()
def put(
    files: Files,
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="The folder for one-time tokens: FOLDER/TENANT/DEVICE.token.")
    ] = None,
    days: TokenDays = 7,
    wait: LockWait = _WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Check device files and publish all changes. If any file has a fault, publish none.

    Devices that are not in the files stay unchanged. The command can be repeated after an interruption; unchanged
    devices are skipped, but regions must confirm them too.

    Exit status: 0; 1 the files have a fault; 3 the cluster or a key refuses the change; 4 another change with the same
    time is in force; 5 a region has not confirmed it; 6 some devices changed meanwhile; 75 the registry is not
    reachable.

    Example: waybill reference devices put devices.toml --tokens tokens --reason "fleet of 2027" --config operator.toml
    """
    from waybill.identity.device_files import judged
    from waybill.identity.registry import DeviceChange
    from waybill.identity.registry_session import Outcome
    from waybill.identity.token_files import TokenFiles

    placed = _read(files, as_json=as_json)
    token_files = None if tokens is None else TokenFiles(tokens)
    try:
        with command_session(config, key, names=_names(placed), as_json=as_json, speaker=_SPEAKER) as (session, known):
            changes, faults = judged(placed, session, known)
            _end_of_faults(faults, as_json=as_json)
            if token_files is not None:
                token_files.add_known(one.held for one in changes if one.held is not None)
            change = DeviceChange(datetime.now(UTC), session.operator, reason)
            claims, faults = _claims(changes, session, change, token_files, timedelta(days=days))
            _end_of_faults(faults, as_json=as_json)
            makes = {one.stated.name: one.make(change, claims.get(one.stated.name)) for one in changes}
            outcome = session.change(makes, wait)
            if token_files is not None:
                # What another command made known a moment before has another token.
                token_files.remove_made(outcome.names(Outcome.REFUSED) + outcome.names(Outcome.SUPERSEDED))
                # What is left now opens something, whatever the exit status will be.
                token_files = None
        if not as_json:
            typer.echo(_summary(changes))
        same = [one.stated.name for one in changes if not one.is_change]
        say_outcome(outcome, wait, as_json=as_json, more={"same": same}, speaker=_SPEAKER)
    except typer.Exit as ended:
        # Of what could not be reached nobody knows whether it was published: those tokens stay.
        if token_files is not None and ended.exit_code in _NOT_PUBLISHED:
            token_files.remove_made()
        raise


def _claims(
    changes: Iterable[JudgedDevice],
    session: RegistrySession,
    change: DeviceChange,
    token_files: TokenFiles | None,
    life: timedelta,
) -> tuple[dict[str, Claim], list[DeviceFileFault]]:
    """The claims of devices that are to be expected, for which tokens are written; and why some cannot be changed."""
    from waybill.identity.device_files import MAX_FILE_FAULTS, DeviceFileFault, FileFault
    from waybill.identity.errors import IdentityError, NameRefused
    from waybill.identity.registry import Claim

    claims, faults = dict[str, Claim](), list[DeviceFileFault]()
    for one in changes:
        name = one.stated.name
        if not one.is_change or len(faults) >= MAX_FILE_FAULTS:
            continue
        try:
            if one.stated.factory is not None:
                claims[name] = Claim(id=one.stated.factory)
            elif one.needs_token:
                if token_files is None:
                    raise NameRefused("it gets a one-time token: say by --tokens FOLDER where that is written")
                claims[name] = token_files.claim(name, change.at + life)
            entry = one.make(change, claims.get(name))(one.held)
        except NameRefused as refused:
            faults.append(DeviceFileFault(one.place, FileFault.NO_TOKEN, f"{name}: {refused}"))
        except IdentityError as refused:
            faults.append(DeviceFileFault(one.place, FileFault.NO_WAY, str(refused)))
        else:
            # Asked for each, or a key without a right would be named without a place.
            if entry is not None and (no_right := session.refusal(entry)) is not None:
                faults.append(DeviceFileFault(one.place, FileFault.NO_RIGHT, f"{name}: {no_right}"))
    return claims, faults


@app.command("list")
def list_(
    *,
    config: Config = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Of this tenant only.")] = "",
    as_file: Annotated[bool, typer.Option("--toml", help="Print a device file of the current state, to edit.")] = False,
    as_json: AsJson = False,
) -> None:
    """List all devices like `waybill device list`, or print them as a device file.

    Example: waybill reference devices list --tenant acme --toml --config operator.toml
    """
    if as_file and as_json:
        raise typer.BadParameter("say one of --toml and --json")
    if as_file:
        show_file(config, tenant, speaker=_SPEAKER)
    else:
        show_devices(config, tenant, as_json=as_json, speaker=_SPEAKER)


@app.command()
def history(device: Device, *, config: Config = None, as_json: AsJson = False) -> None:
    """Show a device and its publications in the topic: time, author, reason.

    Example: waybill reference devices history acme/bus-1 --config operator.toml
    """
    show_device(device, config, as_json=as_json, speaker=_SPEAKER)


def _read(files: Sequence[Path], *, as_json: bool) -> list[PlacedDevice]:
    """The devices of files; of their faults the command ends."""
    from waybill.identity.device_files import read_device_files

    placed, faults = read_device_files(files)
    _end_of_faults(faults, as_json=as_json)
    return placed


def _names(placed: Collection[PlacedDevice]) -> set[str]:
    return {one.stated.name for one in placed}


def _against_registry(files: Sequence[Path], config: Path | None, *, as_json: bool) -> list[JudgedDevice]:
    """What is to be done with each device; of faults the command ends."""
    from waybill.identity.device_files import judged

    placed = _read(files, as_json=as_json)
    with command_session(config, names=_names(placed), signs=False, as_json=as_json, speaker=_SPEAKER) as opened:
        changes, faults = judged(placed, *opened)
    _end_of_faults(faults, as_json=as_json)
    return changes


def _end_of_faults(faults: Sequence[DeviceFileFault], *, as_json: bool) -> None:
    if not faults:
        return
    _say(faults, [], as_json=as_json)
    raise typer.Exit(EXIT_FAULT)


def _say(faults: Sequence[DeviceFileFault], lines: Sequence[str], *, as_json: bool, **facts: object) -> None:
    from waybill.identity.device_files import MAX_FILE_FAULTS

    if as_json:
        named = [one._asdict() for one in faults]
        result = {"result": "fault" if faults else "right", "faults": named}
        typer.echo(printable_json(result | facts, indent=2))
        return
    for fault in faults[:MAX_FILE_FAULTS]:
        typer.echo(str(fault), err=True)
    if faults:
        more = " or more" if len(faults) >= MAX_FILE_FAULTS else ""
        typer.echo(f"{len(faults)}{more} fault{'' if len(faults) == 1 else 's'}; nothing can be published", err=True)
    for line in lines:
        typer.echo(line)


def _summary(changes: Iterable[JudgedDevice]) -> str:
    counts = Counter(str(one.what) for one in changes)
    same = counts.pop("nothing", 0)
    done = ", ".join(f"{counts[what]} {what}" for what in sorted(counts))
    return f"changes: {done or 'none'}; {same} as they are"


def _count(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _change_text(one: JudgedDevice) -> str:
    stated, held = one.stated, one.held
    if held is None:
        return f"{stated.name}: new, {stated.state}, region {stated.region} ({one.what})"
    by = f"version {held.version} by {held.changed_by}"
    if not one.is_change:
        return f"{stated.name}: same, {held.state} ({by})"
    return f"{stated.name}: {held.state} -> {stated.state} ({by})"


def _change_facts(one: JudgedDevice) -> dict[str, Any]:
    held = one.held
    return {
        "place": one.place,
        "device": one.stated.name,
        "change": str(one.what),
        "before": None if held is None else str(held.state),
        "version": None if held is None else held.version,
        "after": str(held.state if held is not None and not one.is_change else one.stated.state),
    }
