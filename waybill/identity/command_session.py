"""What commands share: options and errors; and those of the device registry: the session, output and exit status."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console

from waybill.daemon.process import error_text
from waybill.identity.errors import IdentityError, OperatorKeyRefused
from waybill.settings import SettingsError, printable

if TYPE_CHECKING:
    from waybill.identity.operator_settings import OperatorSettings
    from waybill.identity.registry import DeviceEntry
    from waybill.identity.registry_messages import DevicePublication
    from waybill.identity.registry_session import ChangeOutcome, RegistrySession

# Errors of commands as messages, without stack traces; and the options that commands share.

_errors = Console(stderr=True, highlight=False)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Print an error of identities, settings or the disk as one line; exit status 1."""
    try:
        yield
    except (IdentityError, SettingsError, OSError) as error:
        print_error(error_text(error))
        raise typer.Exit(1) from error


def print_error(text: str) -> None:
    _errors.print(printable(text, "\n"), style="red", markup=False, soft_wrap=True)


AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The operator's settings, a TOML file.", show_default="operator.toml of the local stack"
    ),
]


def _device(text: str) -> str:
    from waybill.identity.names import device_name

    tenant, _, device = text.partition("/")
    return _argument(lambda: device_name(tenant, device))


def _devices(texts: list[str]) -> list[str]:
    return [_device(text) for text in texts]


def _reason(text: str) -> str:
    from waybill.identity.signatures import checked_reason

    return _argument(lambda: checked_reason(text))


def _argument(check: Callable[[], str]) -> str:
    try:
        return check()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Device = Annotated[str, typer.Argument(help="The device, TENANT/DEVICE.", callback=_device)]
Devices = Annotated[list[str], typer.Argument(help="The devices, TENANT/DEVICE.", callback=_devices)]
Reason = Annotated[
    str, typer.Option("--reason", "-m", help="Reason in one line, stored with the change.", callback=_reason)
]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for each region to confirm.", min=0)]
LockWait = Annotated[
    float, typer.Option("--wait", help="Seconds to wait for each region to confirm; 0: do not wait.", min=0)
]
Key = Annotated[
    Path | None,
    typer.Option("--key", help="Your private key, which signs the change.", exists=True, dir_okay=False),
]
Token = Annotated[Path | None, typer.Option("--token-file", help="Create a one-time token and write it to this file.")]
TokenDays = Annotated[float, typer.Option("--days", help="Validity of the token in days.", min=0.01, max=365)]
Factory = Annotated[str | None, typer.Option("--factory", help="The serial in the device's factory certificate.")]
ByHand = Annotated[
    bool,
    typer.Option("--by-hand", help="No claim: the device connects with a certificate of `waybill pki issue`."),
]


# The session of a command of the device registry.

EXIT_ARGUMENTS, EXIT_REFUSED, EXIT_SUPERSEDED, EXIT_UNCONFIRMED, EXIT_PARTLY_REFUSED = range(2, 7)
EXIT_UNREACHABLE: Final = 1
EXIT_INTERRUPTED: Final = 130
"""The exit status that a shell gives a process that SIGINT ended."""
_RESULTS: Final = {
    0: "done",
    EXIT_UNREACHABLE: "unreachable",
    EXIT_ARGUMENTS: "wrong-arguments",
    EXIT_REFUSED: "refused",
    EXIT_SUPERSEDED: "superseded",
    EXIT_UNCONFIRMED: "unconfirmed",
    EXIT_PARTLY_REFUSED: "partly-refused",
    EXIT_INTERRUPTED: "interrupted",
    os.EX_CONFIG: "wrong-settings",
}
_NO_KEY_THERE: Final = "; add your public key to that region's operators.toml: then it takes this change too"
_PROGRAM: Final = "waybill device"


class CommandFailed(typer.Exit):
    """The command ended by `end`, before it published a claim."""


@contextmanager
def shows_progress(program: str = _PROGRAM) -> Iterator[Callable[[str, int], None]]:
    """Shows a step and its count on stderr: updated in place on a terminal, else once for each step."""
    console, said = Console(stderr=True), set[str]()

    def line(what: str, count: int) -> None:
        if what not in said:
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
    signs: bool = True,
    revokes: str = "",
    check: Callable[[OperatorSettings], None] = lambda _: None,
    as_json: bool = False,
) -> Iterator[tuple[RegistrySession, OperatorSettings]]:
    """The session and the settings of a command; errors end it with a message and the exit status.

    `signs`: whether it changes anything; else no key is needed. `tenant`: only its devices are read; "": all.
    `check` raises an IdentityError if the settings do not allow the command. `revokes`: see RegistrySession.
    """
    from waybill.daemon.logs import LogSettings, start_logging
    from waybill.identity.operator_settings import read_operator_settings
    from waybill.identity.registry_session import RegistrySession
    from waybill.identity.registry_topic import RegistryRefused, RegistryUnreachable

    start_logging(LogSettings(level="warning"))
    try:
        settings = read_operator_settings(config)
        if key is not None or not signs:
            settings = settings.model_copy(update={"key": key})
        check(settings)
        with (
            shows_progress() as on_progress,
            RegistrySession(
                settings,
                names=names,
                tenant=tenant,
                revokes=revokes,
                on_progress=on_progress,
            ) as session,
        ):
            yield session, settings
    except SettingsError as error:
        end("\n".join(error.lines), os.EX_CONFIG, as_json=as_json)
    except IdentityError as error:
        status = EXIT_REFUSED
        if isinstance(error, OperatorKeyRefused):
            status = os.EX_CONFIG if key is None else EXIT_ARGUMENTS
        elif isinstance(error, RegistryUnreachable) and not isinstance(error, RegistryRefused):
            status = EXIT_UNREACHABLE
        end(str(error), status, as_json=as_json)


def end(text: str, status: int, *, as_json: bool = False) -> NoReturn:
    """End the command with a message. Only for commands that published no claim."""
    if as_json:
        typer.echo(json.dumps({"result": _RESULTS[status], "why": text}, indent=2))
    else:
        typer.echo(printable(f"{_PROGRAM}: {text}", "\n"), err=True)
    raise CommandFailed(status)


def say_outcome(outcome: ChangeOutcome, wait_s: float, *, as_json: bool) -> None:
    """Show the result of each device; if not all is done, end the command."""
    problems = [*_problems(outcome, wait_s)]
    if as_json:
        why = "; ".join(text for _, text in problems)
        facts = {"result": _RESULTS[problems[0][0] if problems else 0], "why": why, **_outcome_facts(outcome)}
        typer.echo(json.dumps(facts, indent=2))
    else:
        _say_devices(outcome)
        for _, text in problems:
            typer.echo(printable(f"{_PROGRAM}: {text}"), err=True)
    if problems:
        raise typer.Exit(problems[0][0])


def _problems(outcome: ChangeOutcome, wait_s: float) -> Iterator[tuple[int, str]]:
    """Exit status and text of each problem, the worst first."""
    from waybill.identity.registry_session import Outcome

    superseded, unconfirmed, refused = (
        outcome.names(one) for one in (Outcome.SUPERSEDED, Outcome.UNCONFIRMED, Outcome.REFUSED)
    )
    count = len(outcome.devices)
    if outcome.cut_short:
        yield EXIT_INTERRUPTED if outcome.is_interrupted else EXIT_UNREACHABLE, outcome.cut_short
    if superseded:
        yield EXIT_SUPERSEDED, f"{len(superseded)} of {count} changes superseded: run `waybill device show`, and retry"
    if unconfirmed and not outcome.cut_short:
        where = f" in {', '.join(outcome.missing)}" if outcome.missing else ""
        advice = _NO_KEY_THERE if "unknown-key" in "".join(outcome.devices[one].why for one in unconfirmed) else ""
        text = f"{len(unconfirmed)} of {count} changes not confirmed{where} after {wait_s:g} s{advice}"
        yield EXIT_UNCONFIRMED, text
    if refused and not outcome.cut_short:
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
    }


def _say_devices(outcome: ChangeOutcome) -> None:
    for name, one in outcome.devices.items():
        mark = "" if one.outcome == "done" else f"  {one.outcome.upper()}: {one.why}"
        if one.outcome == "refused":
            typer.echo(printable(f"{_PROGRAM}: {name}: {one.why}"), err=True)
        elif (made := outcome.published.get(name)) is not None:
            entry = made.entry
            typer.echo(printable(f"{name}: {entry.state}, version {entry.version} ({made.publication_id}){mark}"))
        elif mark:
            typer.echo(printable(f"{name}:{mark}"))
    if outcome.confirmed and not outcome.missing:
        typer.echo(printable(f"confirmed: {', '.join(outcome.confirmed)}"))


def show_devices(config: Path | None, tenant: str, *, as_json: bool) -> None:
    """List the devices of a tenant, or all."""
    with command_session(config, tenant=tenant, signs=False) as (session, _):
        every = session.publications()
        chosen = [(one, session.signed_by(one)) for one in every if tenant in ("", one.entry.tenant)]
    if as_json:
        typer.echo(json.dumps([_device_facts(one, by) for one, by in chosen], indent=2))
        return
    if not chosen:
        tenants = ", ".join(sorted({one.entry.tenant for one in every}))
        typer.echo(f"{_PROGRAM}: no such device is registered; there are devices of: {tenants or 'nobody'}", err=True)
    for one, by in chosen:
        typer.echo(device_line(one.entry, by))


def show_device(device: str, config: Path | None, *, as_json: bool) -> None:
    """Show a device."""
    with command_session(config, names={device}, signs=False) as (session, _):
        session.known(device)
        held = session.publication(device)
        assert held is not None
        by = session.signed_by(held)
    line = f"{device_line(held.entry, by)}  {held.entry.reason}"
    typer.echo(json.dumps(_device_facts(held, by), indent=2) if as_json else line)


def _device_facts(publication: DevicePublication, signed_by: str) -> dict[str, Any]:
    entry = publication.entry
    facts = json.loads(entry.model_dump_json())
    return {**facts, "signed_by": signed_by}


def device_line(entry: DeviceEntry, signed_by: str = "") -> str:
    """One line for people. `signed_by` is proven; `changed_by` is what the entry says."""
    changed = f"{entry.changed_at:%Y-%m-%dT%H:%M:%SZ} by {entry.changed_by}"
    if signed_by not in ("", entry.changed_by):
        changed += f", signed by {signed_by}"
    return f"{entry.name}  {entry.state}  version {entry.version}  {entry.region}  {changed}"
