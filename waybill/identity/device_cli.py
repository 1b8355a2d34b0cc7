"""`waybill device`: register, suspend, revoke, move and replace devices; each change stores author, time and reason.

Exit status: 0 done; 1 the registry is not reachable, or the connection was lost; 2 wrong arguments; 3 refused: nothing
was changed; 4 superseded: published, but another change with the same time is in force; 5 unconfirmed: published, but a
region refuses it or has not confirmed it in time; 6 some devices were refused, and the others are done; 78 wrong
settings, or one of their files cannot be used; 130 interrupted, with a list of what was published.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.identity.command_options import (
    AsJson,
    ByHand,
    Config,
    Device,
    Devices,
    Factory,
    Key,
    LockWait,
    Reason,
    Successor,
    Token,
    TokenDays,
    Wait,
)
from waybill.identity.command_session import command_session, say_outcome, show_device, show_devices
from waybill.settings import printable

if TYPE_CHECKING:
    from waybill.identity.operator_settings import OperatorSettings
    from waybill.identity.registry import DeviceChange, DeviceEntry
    from waybill.identity.registry_session import RegistrySession


_LOCK_WAIT_S = 10.0
"""Who locks somebody out hears by default whether the regions do so."""

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Expect, suspend, revoke, move and replace devices; show them."
)


@app.command("list")
def list_devices(
    *,
    config: Config = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Of this tenant only.")] = "",
    as_json: AsJson = False,
) -> None:
    """List all devices: state, version, region, last change, and changes that regions have not confirmed.

    Example: waybill device list --config operator.toml --tenant acme
    """
    show_devices(config, tenant, as_json=as_json)


@app.command()
def show(device: Device, *, config: Config = None, as_json: AsJson = False) -> None:
    """Show a device and its stored changes: time, author, reason.

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
    from waybill.identity.registry import expect as expected
    from waybill.identity.registry import expect_again
    from waybill.identity.token_files import claim_option

    tenant, _, name = device.partition("/")

    with claim_option(token_file, factory, by_hand=by_hand, days=days) as claim:

        def entries(session: RegistrySession, change: DeviceChange) -> tuple[DeviceEntry, ...]:
            held = session.known(device) if again else session.get(device)
            waits_for = None if held is None else held.predecessor
            before = None if waits_for is None else session.get(waits_for)
            if again and held is not None:
                made = expect_again(held, region=region, claim=claim, change=change, predecessor=before)
            else:
                made = expected(tenant, name, region=region, claim=claim, change=change, held=held)
            if waits_for is not None and made.predecessor is None:
                typer.echo(f"waybill device: {waits_for} ended otherwise: {device} is a device of its own", err=True)
            return (made,)

        _change(config, key, reason, wait, entries, names={device}, region=region, tenant=tenant, as_json=as_json)


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
def move(
    device: Device,
    tenant: Annotated[str, typer.Argument(help="The new tenant.")],
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    token_file: Token = None,
    factory: Factory = None,
    by_hand: ByHand = False,
    days: TokenDays = 7,
    wait: LockWait = _LOCK_WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Move a device to another tenant: the old name is retired and the new one is registered.

    Example: waybill device move acme/bus-1 zeta --token-file bus-1.token --reason "sold" --config operator.toml
    """
    from waybill.identity.registry import Beginning
    from waybill.identity.registry import move as moved
    from waybill.identity.token_files import claim_option

    name = device.partition("/")[2]
    with claim_option(token_file, factory, by_hand=by_hand, days=days) as claim:

        def entries(session: RegistrySession, change: DeviceChange) -> tuple[DeviceEntry, ...]:
            beginning = Beginning(claim, held=session.get(f"{tenant}/{name}"))
            # The new one first: killed between the two, the command can be given again.
            return moved(session.known(device), tenant, beginning, change)[::-1]

        _change(config, key, reason, wait, entries, names={device, f"{tenant}/{name}"}, tenant=tenant, as_json=as_json)


@app.command()
def replace(
    device: Device,
    successor: Successor,
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    token_file: Token = None,
    factory: Factory = None,
    by_hand: ByHand = False,
    days: TokenDays = 7,
    wait: LockWait = _LOCK_WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Replace a device: the old name is retired and the new device gets its own name.

    Example: waybill device replace acme/bus-1 bus-1b --factory SN-99 --reason "broken" --config operator.toml
    """
    from waybill.identity.registry import Beginning
    from waybill.identity.registry import replace as replaced
    from waybill.identity.token_files import claim_option

    tenant = device.partition("/")[0]
    with claim_option(token_file, factory, by_hand=by_hand, days=days) as claim:

        def entries(session: RegistrySession, change: DeviceChange) -> tuple[DeviceEntry, ...]:
            beginning = Beginning(claim, held=session.get(f"{tenant}/{successor}"))
            return replaced(session.known(device), successor, beginning, change)[::-1]

        _change(config, key, reason, wait, entries, names={device, f"{tenant}/{successor}"}, as_json=as_json)


@app.command()
def sign(
    devices: Annotated[list[str], typer.Argument(help="The devices, TENANT/DEVICE. Default: all.")] = [],  # noqa: B006  # typer reads it
    *,
    config: Config = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Of this tenant only.")] = "",
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
    """Changes devices by one reading of the registry; of each that is refused it says why, the others are done.

    `who`: the settings, and the key that signs. `made`: the entry of a device; None: it is as it is to be, and the
    regions are asked all the same: whoever gives the command again hears whether it is in force by now.
    """
    from waybill.identity.registry import DeviceChange

    with command_session(*who, names=set(devices), revokes=revokes, as_json=as_json) as (session, _):
        change = DeviceChange(datetime.now(UTC), session.operator, reason)
        makes = {name: lambda _, name=name: made(session, name, change) for name in dict.fromkeys(devices)}
        outcome = session.change(makes, wait_s)
    say_outcome(outcome, wait_s, as_json=as_json)


def _change(
    config: Path | None,
    key: Path | None,
    reason: str,
    wait_s: float,
    entries: Callable[[RegistrySession, DeviceChange], tuple[DeviceEntry, ...]],
    *,
    names: set[str],
    region: str | None = None,
    tenant: str | None = None,
    as_json: bool,
) -> None:
    from waybill.identity.registry import DeviceChange, ended_claims
    from waybill.identity.registry_session import exactly

    def check(settings: OperatorSettings) -> None:
        if region is not None:
            settings.check_region(region)
        if tenant is not None:
            settings.check_tenant(tenant)

    with command_session(config, key, names=names, check=check, as_json=as_json) as (session, _):
        change = DeviceChange(datetime.now(UTC), session.operator, reason)
        made = entries(session, change)
        ended = ended_claims({one.name: session.get(one.name) for one in made}, made)
        outcome = session.change({one.name: exactly(one) for one in made}, wait_s, together=True)
    ended = {name: said for name, said in ended.items() if name in outcome.published}
    for name, said in ended.items() if not as_json else ():
        typer.echo(printable(f"waybill device: {name}: {said}"), err=True)
    say_outcome(outcome, wait_s, as_json=as_json, more={"void": ended} if ended else {})
