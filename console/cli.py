"""`waybill console` serves the console; other commands print what its pages show."""

from __future__ import annotations

import json
import os
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cloud_jobs.commands import load_checked_settings
from cloud_jobs.errors import CloudError
from cloud_jobs.terminal import cloud_errors_as_messages, device_of
from console.terminal import AsJson, print_page
from console.terminal import opened as open_console
from waybill.daemon.stack_folder import STACK_VARIABLE, stack_advice, stack_file

if TYPE_CHECKING:
    from starlette.applications import Starlette

_SETTINGS: Final = "cloud.toml"
_DEMO: Final = Path("var/demo")
_GRACE_S: Final = 3
_ALL_ROWS: Final = 1_000_000


def find_settings() -> Path:
    """The settings of the local stack, or of the last demo; the newer of both. $WAYBILL_STACK comes first."""
    candidates = [stack_file(_SETTINGS)]
    if not os.environ.get(STACK_VARIABLE):
        candidates.append(_DEMO / _SETTINGS)
    there = [file for file in candidates if file.is_file()]
    if not there:
        names = " and ".join(str(file) for file in candidates)
        raise typer.BadParameter(f"{names}: there is no such file; {stack_advice()}; `make demo` makes one")
    return max(there, key=lambda file: file.stat().st_mtime)


Config = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        default_factory=find_settings,
        help="The settings of the centre, a TOML file. Default: of the local stack, or of the last demo.",
        show_default=False,
    ),
]


@cloud_errors_as_messages("console")
def console(
    config: Config,
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: console.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: any free one. Default: console.port.")] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the console in a browser.")] = False,
) -> None:
    """Show the fleet, its bills and its health as pages with a map. Read-only.

    Example: waybill console --open
    """
    from console.app import make_app
    from console.assets import are_stale
    from console.context import Console
    from console.pages.fleet import has_stopped
    from console.serve import open_socket, serve

    settings = load_checked_settings(config)
    asked = settings.console.model_copy(
        update={name: value for name, value in (("host", host), ("port", port)) if value is not None}
    )
    socket = open_socket(asked)
    made = Console(settings, folder=config.absolute().parent)
    app: Starlette = make_app(made, hosts=(*asked.names, asked.host))
    address = f"http://{asked.host}:{socket.getsockname()[1]}/"
    typer.echo(f"console of {settings.lake}: {address} (Ctrl-C ends it)")
    try:
        made.lake.has("records")
    except CloudError as error:
        typer.echo(f"warning: {error}", err=True)
    if are_stale():
        typer.echo("warning: the scripts are older than their sources; `make setup` builds them", err=True)
    if open_browser:
        webbrowser.open(address + ("replay" if has_stopped(made) else ""))
    serve(app, socket, grace_s=_GRACE_S)


@cloud_errors_as_messages("waybill console-link")
def console_link(
    config: Config,
    number: Annotated[str | None, typer.Argument(help="The number of the invoice or note.")] = None,
    *,
    days: Annotated[int, typer.Option(min=1, max=400, help="Days until the link expires.")] = 30,
    url: Annotated[
        str | None, typer.Option(help="Address of the console for customers. Default: console.auth.base_url.")
    ] = None,
    revoke: Annotated[str | None, typer.Option(metavar="ID", help="Revoke the link with this id instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a link with which a customer opens one document and its evidence in the console, or revoke one.

    Exit status: 0 done; 1 no such document; 2 wrong options; 78 for wrong settings.

    Example: waybill console-link WE-00000001 --days 30 --url https://console.example.com
    """
    from datetime import UTC, datetime, timedelta

    from cloud_jobs.billing.register.tables import Register
    from console.links import make_link, revoke_link
    from console.page import address
    from geo.reference.moments import stamp

    settings = load_checked_settings(config)
    if (number is None) == (revoke is None):
        raise typer.BadParameter("give the number of a document, or --revoke with the id of a link")
    if revoke is not None:
        revoke_link(settings.console, revoke)
        typer.echo(json.dumps({"revoked": revoke}) if as_json else f"revoked: {revoke}")
        return
    assert number is not None
    entry, _ = Register(settings.tables).document(number)
    auth = settings.console.auth
    base = url or (auth.base_url if auth else f"http://{settings.console.host}:{settings.console.port}")
    link, token = make_link(settings.console, number, datetime.now(UTC) + timedelta(days=days))
    made = {"id": link.id, "document": number, "payer": entry.key.payer, "until": stamp(link.until)}
    made["link"] = base.rstrip("/") + address("shared", token)
    if as_json:
        typer.echo(json.dumps(made, indent=2))
    else:
        typer.echo(made["link"])
        if not (url or auth):
            typer.echo("warning: only this machine can open this address; give --url, or set console.auth", err=True)
        typer.echo(f"shows {number} of {entry.key.payer} until {made['until']}; its id is {link.id}", err=True)


@cloud_errors_as_messages("waybill health")
def health(config: Config, *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what is wrong now, since when, what it affects, and the step of the runbook. Reads only.

    Exit status: 0 everything is fine; 1 something is wrong; 3 nothing is known to be wrong, but something is unknown;
    78 for wrong settings.

    Example: waybill health --json
    """
    from console.health.checks import Outcome
    from console.page import Clock
    from console.pages.health import health_page
    from console.terminal import opened, print_health, print_page

    shown = opened(config)
    found = shown.health.read()
    if as_json:
        print_page(health_page(found), shown, as_json_text=True)
    else:
        print_health(found, Clock.utc(found.now))
    raise typer.Exit({Outcome.FINE: 0, Outcome.WRONG: 1, Outcome.UNKNOWN: 3}[found.outcome])


@cloud_errors_as_messages("waybill events")
def events(
    config: Config,
    *,
    tenant: Annotated[str, typer.Option(help="Only this tenant.")] = "",
    device: Annotated[str, typer.Option(help="Only this device: DEVICE, or TENANT/DEVICE.")] = "",
    fence: Annotated[str, typer.Option(help="Only events at this fence or gate, by its id.")] = "",
    kind: Annotated[str, typer.Option(help="Only this kind, as enter, exit or encounter.")] = "",
    since: Annotated[
        str, typer.Option(help="From then on: 2026-01-05T08:00, or 24h before now. Default: the newest day.")
    ] = "",
    until: Annotated[str, typer.Option(help="Before then.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the same as the page /events.")] = False,
) -> None:
    """Show events at fences and encounters, in force, newest first. Times are in the accounts' zone.

    Exit status: 0 shown; 1 a table is damaged; 75 when the store does not answer; 78 for wrong settings.

    Example: waybill events --device fleet/eu-0001 --since 24h
    """
    from console.asked import check_asked
    from console.context import Query
    from console.pages.happenings import events_page
    from console.terminal import opened, print_page

    asked = {"tenant": tenant, "device": device, "fence": fence, "kind": kind, "since": since, "until": until}
    shown = opened(config)
    query = Query(asked={name: value for name, value in asked.items() if value})
    page = events_page(shown, query)
    check_asked(page, query)
    print_page(page, shown, as_json_text=as_json)


@cloud_errors_as_messages("fleet")
def fleet(
    config: Config,
    device: Annotated[
        str | None, typer.Argument(metavar="[TENANT/DEVICE]", help="One device whole. Default: all devices.")
    ] = None,
    *,
    tenant: Annotated[str, typer.Option(help="Only devices of this tenant.", show_default=False)] = "",
    account: Annotated[str, typer.Option(help="Only devices of this account.", show_default=False)] = "",
    region: Annotated[str, typer.Option(help="Only devices of this region.", show_default=False)] = "",
    state: Annotated[str, typer.Option(help="driving, parked, silent or unknown.", show_default=False)] = "",
    records: Annotated[
        str, typer.Option(help="complete, declared loss, open, silent or unknown.", show_default=False)
    ] = "",
    box: Annotated[str, typer.Option(help="west,south,east,north in degrees.", show_default=False)] = "",
    at: Annotated[str, typer.Option(help="A time of the past, as 2026-03-05T09:30 or 24h.", show_default=False)] = "",
    day: Annotated[
        str, typer.Option(help="With a device: its day, as 2026-03-05. Default: of its last fix.", show_default=False)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show each device's last fix, state, metered distance and completeness, or one device on one day.

    Example: waybill fleet --state silent
    """
    from console.asked import check_asked
    from console.context import Query
    from console.pages import device as device_page
    from console.pages import fleet as fleet_page

    opened = open_console(config)
    asked = {"tenant": tenant, "account": account, "region": region, "state": state, "records": records}
    asked = {name: text for name, text in (asked | {"box": box, "at": at, "day": day}).items() if text}
    if device is None:
        query = Query(asked=asked)
        page = fleet_page.page(opened, query, rows_of_page=_ALL_ROWS)
        check_asked(page, query)
    else:
        named = device_of(device)
        page = device_page.page(opened, Query(path=named._asdict(), asked=asked))
    # a terminal has no picture
    print_page(replace(page, island=None), opened, as_json_text=as_json)
