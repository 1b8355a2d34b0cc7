"""`waybill device`: who is expected, may send, is suspended or locked out; each change with who, when and why.

Exit status: 0 done; 1 the registry is not reachable, or was lost on the way; 2 wrong arguments; 3 refused: nothing was
changed; 4 superseded: published, and of a device another change of the same moment holds instead; 5 unconfirmed:
published, and a region refuses it or has not confirmed it in time, or it did not come back; 6 of several devices some
were refused, and the others are done; 78 wrong settings, or a file that they name cannot be used; 130 interrupted, and
what is published by then is said.
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
    """List every device: state, version, region, when and by whom it was changed, and what no region has confirmed.

    Example: waybill device list --config operator.toml --tenant acme
    """
    show_devices(config, tenant, as_json=as_json)


@app.command()
def show(device: Device, *, config: Config = None, as_json: AsJson = False) -> None:
    """Show a device, and each change of it that is still kept: when, by whom, why.

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
            help="Give a known device another claim: it lost its own, or its certificates have ended. The earlier "
            "claim is void.",
        ),
    ] = False,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Make a device known, with what it shows to be enrolled. One that is known is refused without --again.

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
    """End devices' sessions in all regions, and let them in no more until they are resumed.

    Of several devices each that is refused is named, and the others are done: exit status 6.

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
    """Let suspended devices in again.

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
    """End devices' sessions in all regions, and never let them in again.

    It is published before the registry is read, so that it takes effect at once in a registry of any size. A name that
    was not known is refused, and is revoked all the same: it cannot be used any more.

    Of several devices each that is refused is named, and the others are done: exit status 6.

    Example: waybill device revoke acme/bus-1 acme/bus-2 --reason "stolen" --config operator.toml --wait 10
    """

    def made(session: RegistrySession, name: str, change: DeviceChange) -> DeviceEntry | None:
        return session.revoked(name, change)

    _change_each((config, key), reason, wait, made, devices, as_json=as_json, revokes=reason)


@app.command()
def move(
    device: Device,
    tenant: Annotated[str, typer.Argument(help="The tenant that it belongs to from now on.")],
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
    """Give a device to another tenant: its name here ends, and it is expected there.

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
    """Put a new device into the vehicle of this one, whose name ends; the new one has its own name and epoch.

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
    devices: Annotated[list[str], typer.Argument(help="The devices, TENANT/DEVICE; none: every one.")] = [],  # noqa: B006  # typer reads it
    *,
    config: Config = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Of this tenant only.")] = "",
    key: Key = None,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Publish devices as they are under your signature, before another key is taken out of the trusted ones.

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
