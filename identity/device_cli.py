"""`waybill device`: who is expected, may send, is suspended or locked out; each change with who, when and why.

Exit status: 0 done; 1 the registry is not reachable; 3 refused: nothing was changed; 4 published, and another change of
the same moment holds instead; 5 published, and a region refuses it or has not confirmed it in time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer

if TYPE_CHECKING:
    from identity.operator_settings import OperatorSettings
    from identity.registry import DeviceChange, DeviceEntry
    from identity.registry_messages import DevicePublication
    from identity.registry_session import ChangeOutcome, RegistrySession

__all__ = ["app"]

_LOCK_WAIT_S = 10.0
"""Who locks somebody out hears by default whether the regions do so."""
_NO_KEY_THERE = "add your public key to that region's operators.toml: then it takes this change too"
_CONFIRMATIONS_KEPT = timedelta(days=1)
"""So long the topologies keep confirmations."""
EXIT_UNREACHABLE, EXIT_REFUSED, EXIT_OUTRANKED, EXIT_NOT_CONFIRMED = 1, 3, 4, 5
_NOT_PUBLISHED = (2, EXIT_REFUSED, os.EX_CONFIG)
P = ParamSpec("P")

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Expect, suspend, revoke, move and replace devices; show them."
)
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The operator's settings, a TOML file.", show_default="operator.toml of the local stack"
    ),
]
Device = Annotated[str, typer.Argument(help="The device, TENANT/DEVICE.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is recorded.")]
Wait = Annotated[float, typer.Option("--wait", help="Wait so many seconds for each region to confirm.", min=0)]
LockWait = Annotated[
    float, typer.Option("--wait", help="Wait so many seconds for each region to confirm; 0: do not wait.", min=0)
]
Key = Annotated[Path | None, typer.Option("--key", help="Your private key, which signs the change.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Token = Annotated[Path | None, typer.Option("--token-file", help="Make a one-time token, and write it to this file.")]
TokenDays = Annotated[float, typer.Option("--days", help="How long the token is good for.", min=0.01, max=365)]
Factory = Annotated[str | None, typer.Option("--factory", help="The serial in the device's factory certificate.")]
ByHand = Annotated[bool, typer.Option("--by-hand", help="No claim: it gets its certificate by `waybill pki device`.")]


def _removes_refused_token(command: Callable[P, None]) -> Callable[P, None]:
    """A token that was never published opens nothing: its file does not stay where the command was refused."""

    @wraps(command)
    def run(*arguments: P.args, **more: P.kwargs) -> None:
        file = more.get("token_file")
        is_new = isinstance(file, Path) and not file.exists()
        try:
            command(*arguments, **more)
        except (typer.Exit, typer.BadParameter) as ended:
            # Of what could not be reached nobody knows whether it was published.
            if is_new and isinstance(file, Path) and ended.exit_code in _NOT_PUBLISHED:
                file.unlink(missing_ok=True)
            raise

    return run


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
    with _session(config) as (session, _):
        missing = session.not_confirmed(datetime.now(UTC) - _CONFIRMATIONS_KEPT)
        chosen = [one for one in session.publications() if tenant in ("", one.entry.tenant)]
        if as_json:
            facts = [_facts(session, one) | _confirmation(one.entry, missing) for one in chosen]
            typer.echo(json.dumps(facts, indent=2))
        else:
            for one in chosen:
                why = (missing or {}).get(one.entry.name)
                typer.echo(_line(one.entry, session.signed_by(one)) + (f"  NOT CONFIRMED: {why}" if why else ""))
    if missing is None:
        typer.echo("waybill device: confirmations cannot be read: what is listed may not be in force", err=True)


@app.command()
def show(device: Device, *, config: Config = None, as_json: AsJson = False) -> None:
    """Show a device, and each change of it that is still kept: when, by whom, why.

    Example: waybill device show acme/bus-1 --config operator.toml
    """
    with _session(config, names={device}, with_history=True) as (session, _):
        _known(session, device)
        held = session.publication(device)
        assert held is not None, "it is known"
        past = session.history(device)
        if as_json:
            facts = {"device": _facts(session, held), "history": [_facts(session, one) for one in past]}
            sys.stdout.write(json.dumps(facts, indent=2) + "\n")
            return
        typer.echo(_line(held.entry, session.signed_by(held)))
        for one in past:
            typer.echo(f"  {_line(one.entry, session.signed_by(one))}  {one.entry.reason}")


@app.command()
@_removes_refused_token
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
        bool, typer.Option("--again", help="One that was enrolled, and whose certificates ended.")
    ] = False,
    wait: Wait = 0,
) -> None:
    """Make a device known, with what it shows to be enrolled.

    Example: waybill device expect acme/bus-1 --region eu --token-file bus-1.token --reason "new" --config operator.toml
    """
    from identity.claim_option import claim_of
    from identity.registry import expect as expected
    from identity.registry import expect_again

    tenant, _, name = device.partition("/")
    claim = claim_of(token_file, factory, by_hand=by_hand, days=days)
    if again and claim is None:
        raise typer.BadParameter("--again needs a claim: --token-file or --factory")

    def entries(session: RegistrySession, change: DeviceChange) -> tuple[DeviceEntry, ...]:
        if again and claim is not None:
            return (expect_again(_known(session, device), region=region, claim=claim, change=change),)
        return (expected(tenant, name, region=region, claim=claim, change=change, held=session.get(device)),)

    _change(config, key, reason, wait, entries, names={device}, region=region)


@app.command()
def suspend(
    device: Device, *, config: Config = None, reason: Reason, key: Key = None, wait: LockWait = _LOCK_WAIT_S
) -> None:
    """End a device's session in all regions, and let it in no more until it is resumed.

    Example: waybill device suspend acme/bus-1 --reason "in the workshop" --config operator.toml --wait 10
    """
    from identity.registry import suspend as suspended

    _change(
        config, key, reason, wait, lambda session, change: (suspended(_known(session, device), change),), names={device}
    )


@app.command()
def resume(device: Device, *, config: Config = None, reason: Reason, key: Key = None, wait: Wait = 0) -> None:
    """Let a suspended device in again.

    Example: waybill device resume acme/bus-1 --reason "repaired" --config operator.toml
    """
    from identity.registry import resume as resumed

    _change(
        config, key, reason, wait, lambda session, change: (resumed(_known(session, device), change),), names={device}
    )


@app.command()
def revoke(
    device: Device, *, config: Config = None, reason: Reason, key: Key = None, wait: LockWait = _LOCK_WAIT_S
) -> None:
    """End a device's session in all regions, and never let it in again.

    Example: waybill device revoke acme/bus-1 --reason "stolen" --config operator.toml --wait 10
    """
    from identity.registry import revoke as revoked

    _change(
        config, key, reason, wait, lambda session, change: (revoked(_known(session, device), change),), names={device}
    )


@app.command()
@_removes_refused_token
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
) -> None:
    """Give a device to another tenant: its name here ends, and it is expected there.

    Example: waybill device move acme/bus-1 zeta --token-file bus-1.token --reason "sold" --config operator.toml
    """
    from identity.claim_option import claim_of
    from identity.registry import Beginning
    from identity.registry import move as moved

    claim, name = claim_of(token_file, factory, by_hand=by_hand, days=days), device.partition("/")[2]

    def entries(session: RegistrySession, change: DeviceChange) -> tuple[DeviceEntry, ...]:
        beginning = Beginning(claim, held=session.get(f"{tenant}/{name}"))
        # The new one first: killed between the two, the command can be given again.
        return moved(_known(session, device), tenant, beginning, change)[::-1]

    _change(config, key, reason, wait, entries, names={device, f"{tenant}/{name}"})


@app.command()
@_removes_refused_token
def replace(
    device: Device,
    successor: Annotated[str, typer.Argument(help="The name of the new device in this vehicle, of the same tenant.")],
    *,
    config: Config = None,
    reason: Reason,
    key: Key = None,
    token_file: Token = None,
    factory: Factory = None,
    by_hand: ByHand = False,
    days: TokenDays = 7,
    wait: LockWait = _LOCK_WAIT_S,
) -> None:
    """Put a new device into the vehicle of this one, whose name ends; the new one has its own name and epoch.

    Example: waybill device replace acme/bus-1 bus-1b --factory SN-99 --reason "broken" --config operator.toml
    """
    from identity.claim_option import claim_of
    from identity.registry import Beginning
    from identity.registry import replace as replaced

    claim, tenant = claim_of(token_file, factory, by_hand=by_hand, days=days), device.partition("/")[0]

    def entries(session: RegistrySession, change: DeviceChange) -> tuple[DeviceEntry, ...]:
        beginning = Beginning(claim, held=session.get(f"{tenant}/{successor}"))
        return replaced(_known(session, device), successor, beginning, change)[::-1]

    _change(config, key, reason, wait, entries, names={device, f"{tenant}/{successor}"})


@app.command()
def sign(
    devices: Annotated[list[str], typer.Argument(help="The devices, TENANT/DEVICE; none: every one.")] = [],  # noqa: B006  # typer reads it
    *,
    config: Config,
    tenant: Annotated[str, typer.Option("--tenant", help="Of this tenant only.")] = "",
    key: Key = None,
    wait: Wait = 0,
) -> None:
    """Publish devices as they are under your signature, before another key is taken out of the trusted ones.

    Example: waybill device sign --tenant acme --key anna.key --config operator.toml
    """
    with _session(config, key, names=devices or None) as (session, settings):
        chosen = [_known(session, name) for name in devices] or [one.entry for one in session.publications()]
        outcome = session.sign([entry.name for entry in chosen if tenant in ("", entry.tenant)], wait)
    _say(outcome, settings, wait)


def _change(
    config: Path | None,
    key: Path | None,
    reason: str,
    wait_s: float,
    entries: Callable[[RegistrySession, DeviceChange], tuple[DeviceEntry, ...]],
    *,
    names: set[str],
    region: str | None = None,
) -> None:
    from identity.registry import DeviceChange

    with _session(config, key, names=names) as (session, settings):
        if region is not None:
            settings.check_region(region)
        change = DeviceChange(datetime.now(UTC), session.operator, reason)
        outcome = session.publish(entries(session, change), wait_s)
    _say(outcome, settings, wait_s)


def _say(outcome: ChangeOutcome, settings: OperatorSettings, wait_s: float) -> None:
    from identity.errors import SignatureFault

    for one in outcome.publications:
        typer.echo(f"{one.entry.name}: {one.entry.state}, version {one.entry.version} ({one.publication_id})")
        if one.entry.claim is not None and one.entry.claim.until is not None and one.entry.state == "expected":
            typer.echo(f"  its token is good until {one.entry.claim.until:%Y-%m-%dT%H:%M:%SZ}")
    if not outcome.holds:
        _end("somebody changed it at the same moment, and that change holds: look, and ask again", EXIT_OUTRANKED)
    if outcome.missing is not None:
        if confirmed := [region for region in settings.regions if region not in outcome.missing]:
            typer.echo(f"confirmed: {', '.join(confirmed)}")
        if outcome.missing:
            more = f" ({_NO_KEY_THERE})" if SignatureFault.UNKNOWN_KEY in outcome.why else ""
            _end(f"not in force everywhere after {wait_s:g} s: {outcome.why}{more}", EXIT_NOT_CONFIRMED)


@contextmanager
def _session(
    config: Path | None,
    key: Path | None = None,
    *,
    names: Collection[str] | None = None,
    with_history: bool = False,
) -> Iterator[tuple[RegistrySession, OperatorSettings]]:
    from rich.console import Console

    from identity.errors import IdentityError
    from identity.operator_settings import read_operator_settings
    from identity.registry_publisher import RegistryUnreachable
    from identity.registry_session import RegistrySession
    from runtime.logs import LogSettings, start_logging
    from settings import SettingsError

    # What is printed is the answer; what goes wrong on the way is said beside it.
    start_logging(LogSettings(level="warning"))
    try:
        settings = read_operator_settings(config)
        if key is not None:
            settings = settings.model_copy(update={"key": key})
        with (
            Console(stderr=True).status("") as shown,
            RegistrySession(
                settings,
                names=names,
                with_history=with_history,
                on_progress=lambda what, count: shown.update(f"{what}: {count:,}"),
            ) as session,
        ):
            yield session, settings
    except SettingsError as error:
        _end("\n".join(error.lines), os.EX_CONFIG)
    except RegistryUnreachable as error:
        _end(str(error), EXIT_UNREACHABLE)
    except IdentityError as error:
        _end(str(error), EXIT_REFUSED)


def _known(session: RegistrySession, device: str) -> DeviceEntry:
    from identity.registry import ChangeRefused

    entry = session.get(device)
    if entry is None:
        raise ChangeRefused(device, None, "it", "the registry has no such device")
    return entry


def _facts(session: RegistrySession, publication: DevicePublication) -> dict[str, Any]:
    return {**json.loads(publication.entry.model_dump_json()), "signed_by": session.signed_by(publication)}


def _line(entry: DeviceEntry, signed_by: str = "") -> str:
    """`signed_by` beside who the entry says: the first is proven, the second is what was written."""
    more = f" -> {entry.successor}" if entry.successor else ""
    changed = f"{entry.changed_at:%Y-%m-%dT%H:%M:%SZ} by {entry.changed_by}"
    if signed_by not in ("", entry.changed_by):
        changed += f", signed by {signed_by}"
    return f"{entry.name}  {entry.state}{more}  version {entry.version}  {entry.region}  {changed}"


def _confirmation(entry: DeviceEntry, missing: dict[str, str] | None) -> dict[str, str | bool | None]:
    return {"confirmed": None if missing is None else entry.name not in missing, "why": (missing or {}).get(entry.name)}


def _end(text: str, status: int) -> NoReturn:
    typer.echo(f"waybill device: {text}", err=True)
    raise typer.Exit(status)
