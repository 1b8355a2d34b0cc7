"""`waybill device`: register, suspend, resume and revoke devices; each change stores author, time and reason.

Exit status: 0 done; 1 the registry is not reachable, or the connection was lost; 2 wrong arguments; 3 refused: nothing
was changed; 4 superseded: published, but a concurrent change is in force; 5 unconfirmed: published, but a region
refuses it or has not confirmed it in time; 6 some devices were refused, and the others are done; 78 wrong settings, or
one of their files cannot be used; 130 interrupted, with a list of what was published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.identity.command_session import (
    EXIT_REFUSED,
    AsJson,
    ByHand,
    Config,
    Device,
    Devices,
    Factory,
    Key,
    LockWait,
    Reason,
    Token,
    TokenDays,
    Wait,
    command_session,
    end,
    say_outcome,
    show_device,
    show_devices,
)
from waybill.settings import SettingsError, printable

if TYPE_CHECKING:
    from waybill.identity.device_files import FileChange
    from waybill.identity.operator_settings import OperatorSettings
    from waybill.identity.registry import Claim, DeviceChange, DeviceEntry
    from waybill.identity.registry_session import RegistrySession
    from waybill.identity.token_files import TokenFiles


_LOCK_WAIT_S = 10.0
"""Commands that lock devices out wait for the regions by default."""

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Register, suspend, resume and revoke devices; show them."
)


@app.command("list")
def list_devices(
    *,
    config: Config = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Only devices of this tenant.")] = "",
    as_json: AsJson = False,
) -> None:
    """List all devices: state, version, region and last change.

    Example: waybill device list --config operator.toml --tenant acme
    """
    show_devices(config, tenant, as_json=as_json)


@app.command()
def show(device: Device, *, config: Config = None, as_json: AsJson = False) -> None:
    """Show a device and its last change: time, author, reason.

    Example: waybill device show acme/bus-1 --config operator.toml
    """
    show_device(device, config, as_json=as_json)


@app.command()
def expect(
    device: Device,
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    region: Annotated[str, typer.Option("--region", help="The region that enrols it.")],
    token_file: Token = None,
    factory: Factory = None,
    by_hand: ByHand = False,
    days: TokenDays = 7,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Give a registered device a new claim, because it lost its own or its certificates expired. The "
            "earlier claim becomes invalid.",
        ),
    ] = False,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Register a device and its enrolment claim. Use --again for a device that is already registered.

    Example: waybill device expect acme/bus-1 --region eu --token-file bus-1.token --reason "new" --config operator.toml
    """
    from waybill.identity.registry import DeviceChange, expect_again
    from waybill.identity.registry import expect as expected
    from waybill.identity.registry_session import exactly
    from waybill.identity.token_files import claim_option

    tenant, _, name = device.partition("/")

    def check(settings: OperatorSettings) -> None:
        settings.check_region(region)
        settings.check_tenant(tenant)

    with claim_option(token_file, factory, by_hand=by_hand, days=days) as claim:
        with command_session(config, key, names={device}, check=check, as_json=as_json) as (session, _):
            change = DeviceChange(datetime.now(UTC), session.operator, reason)
            made = (
                expect_again(session.known(device), region=region, claim=claim, change=change)
                if again
                else expected(tenant, name, region=region, claim=claim, change=change, held=session.get(device))
            )
            outcome = session.change({made.name: exactly(made)}, wait, together=True)
        say_outcome(outcome, wait, as_json=as_json)


@app.command()
def suspend(
    devices: Devices,
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    wait: LockWait = _LOCK_WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Disconnect devices in all regions until they are resumed.

    If some are refused, the others are still suspended (exit status 6).

    Example: waybill device suspend acme/bus-1 --reason "in the workshop" --config operator.toml --wait 10
    """
    from waybill.identity.registry import suspend as suspended

    def made(session: RegistrySession, name: str, change: DeviceChange) -> DeviceEntry | None:
        held = session.known(name)
        return None if held.state == "suspended" else suspended(held, change)

    _change_each((config, key), reason, wait, made, devices, as_json=as_json)


@app.command()
def resume(
    devices: Devices,
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Let suspended devices connect again.

    Example: waybill device resume acme/bus-1 --reason "repaired" --config operator.toml
    """
    from waybill.identity.registry import resume as resumed

    def made(session: RegistrySession, name: str, change: DeviceChange) -> DeviceEntry:
        return resumed(session.known(name), change)

    _change_each((config, key), reason, wait, made, devices, as_json=as_json)


@app.command()
def revoke(
    devices: Devices,
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    wait: LockWait = _LOCK_WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Disconnect devices in all regions permanently.

    The command publishes the change before it reads the registry, so it takes effect at once in a registry of any size.
    An unregistered name is reported as refused, but is revoked too and cannot be used later.

    If some are refused, the others are still revoked (exit status 6).

    Example: waybill device revoke acme/bus-1 acme/bus-2 --reason "stolen" --config operator.toml --wait 10
    """

    def made(session: RegistrySession, name: str, change: DeviceChange) -> DeviceEntry | None:
        return session.revoked(name, change)

    _change_each((config, key), reason, wait, made, devices, as_json=as_json, revokes=reason)


@app.command()
def sign(
    devices: Annotated[list[str], typer.Argument(help="The devices, TENANT/DEVICE. Default: all.")] = [],  # noqa: B006  # typer reads it
    *,
    config: Config = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Only devices of this tenant.")] = "",
    key: Key = None,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Sign the current entries with your key, before another key is removed from the trusted keys.

    Example: waybill device sign --tenant acme --key anna.key --config operator.toml
    """
    from waybill.identity.registry_session import as_it_is

    with command_session(config, key, names=devices or None, tenant=tenant, as_json=as_json) as (session, _):
        names = devices or [one.entry.name for one in session.publications() if tenant in ("", one.entry.tenant)]
        outcome = session.change(dict.fromkeys(names, as_it_is), wait)
    say_outcome(outcome, wait, as_json=as_json)


@app.command()
def put(
    file: Annotated[Path, typer.Argument(help="TOML with [[device]].")],
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="The folder for one-time tokens: FOLDER/TENANT/DEVICE.token.")
    ] = None,
    days: TokenDays = 7,
    wait: LockWait = _LOCK_WAIT_S,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes and publish nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a device file with the registry and publish all changes, or none if one has a fault.

    Devices that are not in the file stay unchanged. The command can be repeated after an interruption; unchanged
    devices are skipped, but regions must confirm them too.

    Example: waybill device put devices.toml --tokens tokens --reason "fleet of 2027" --config operator.toml
    """
    from waybill.identity.device_files import MAX_FILE_FAULTS, change_lines, judged, read_device_file
    from waybill.identity.registry import DeviceChange
    from waybill.identity.registry_session import Outcome
    from waybill.identity.token_files import TokenFiles, may_be_published

    try:
        stated = read_device_file(file)
    except SettingsError as error:
        end("\n".join(error.lines), os.EX_CONFIG, as_json=as_json)
    token_files = None if tokens is None else TokenFiles(tokens)
    try:
        names = {one.name for one in stated}
        with command_session(config, key, names=names, signs=not dry_run, as_json=as_json) as (session, settings):
            changes, faults = judged(stated, session, settings)
            change = DeviceChange(datetime.now(UTC), session.operator, reason)
            claims: dict[str, Claim] = {}
            if not faults and not dry_run:
                claims, faults = _claims(changes, session, change, token_files, timedelta(days=days))
            if faults:
                lines = [*faults[:MAX_FILE_FAULTS], f"{len(faults)} faults; nothing was published"]
                end("\n".join(lines), EXIT_REFUSED, as_json=as_json)
            if not as_json or dry_run:
                typer.echo("\n".join(map(printable, change_lines(changes))))
            if dry_run:
                return
            makes = {one.stated.name: one.make(change, claims.get(one.stated.name)) for one in changes}
            outcome = session.change(makes, wait)
            if token_files is not None:
                # Another command that registered the device a moment before gave it another token.
                token_files.remove_made(outcome.names(Outcome.REFUSED) + outcome.names(Outcome.SUPERSEDED))
                token_files = None
        say_outcome(outcome, wait, as_json=as_json)
    except typer.Exit as ended:
        if token_files is not None and not may_be_published(ended):
            token_files.remove_made()
        raise


def _claims(
    changes: Iterable[FileChange],
    session: RegistrySession,
    change: DeviceChange,
    token_files: TokenFiles | None,
    life: timedelta,
) -> tuple[dict[str, Claim], list[str]]:
    """The claims of new devices, whose tokens are written to files; and why some devices cannot be changed."""
    from waybill.identity.errors import IdentityError, NameRefused
    from waybill.identity.registry import Claim

    claims, faults = dict[str, Claim](), list[str]()
    for one in changes:
        name = one.stated.name
        try:
            if one.needs_token:
                if token_files is None:
                    raise NameRefused("it gets a one-time token: name a folder for it by --tokens")
                claims[name] = token_files.claim(name, change.at + life)
            elif one.is_change and one.stated.factory is not None:
                claims[name] = Claim(id=one.stated.factory)
            entry = one.make(change, claims.get(name))(one.held)
            if entry is not None and (refused := session.refusal(entry)) is not None:
                raise refused
        except IdentityError as refused:
            faults.append(f"{name}: {refused}")
    return claims, faults


def _change_each(
    who: tuple[Path | None, Path | None],
    reason: str,
    wait_s: float,
    made: Callable[[RegistrySession, str, DeviceChange], DeviceEntry | None],
    devices: list[str],
    *,
    as_json: bool,
    revokes: str = "",
) -> None:
    """Change devices independently of each other. `who`: the settings, and the key that signs.

    `made`: the entry of a device; None: it needs no change, but the regions are asked whether it is in force.
    """
    from waybill.identity.registry import DeviceChange

    with command_session(*who, names=set(devices), revokes=revokes, as_json=as_json) as (session, _):
        change = DeviceChange(datetime.now(UTC), session.operator, reason)
        makes = {name: lambda _, name=name: made(session, name, change) for name in dict.fromkeys(devices)}
        outcome = session.change(makes, wait_s)
    say_outcome(outcome, wait_s, as_json=as_json)
