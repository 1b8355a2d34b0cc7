"""`waybill try`: one device of the user's own on the local stack, and a ladder of what became of its first message."""

from __future__ import annotations

import json
import queue
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deploy.local import LocalStackError
from deploy.trial.ladder import LadderState, Rung, RungView, rungs, step
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.signals import raise_on_signals

if TYPE_CHECKING:
    from deploy.trial.phone import PhoneListener
    from deploy.trial.sources import Place, Track
    from deploy.trial.trial import Trial

# The ladder on a terminal, as lines, and as JSON.

_WIDTH = None if sys.stdout.isatty() else 160
console = Console(highlight=False, width=_WIDTH)
errors = Console(stderr=True, highlight=False)


_MARKS = {(True, False): ("✓", "green"), (False, True): ("!", "red"), (False, False): ("·", "dim")}


def ladder_table(views: Sequence[RungView], began_s: float, now_s: float) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for view in views:
        mark, style = _MARKS[view.after_s is not None, view.is_stuck]
        at = f"+{view.after_s:.2f} s" if view.after_s is not None else ""
        text = Text(view.text if view.after_s is not None else "")
        if view.why:
            text.append(f"{'; ' if text else ''}{view.why}", style="yellow")
        table.add_row(
            Text(mark, style=style), Text(view.rung, style="" if view.after_s is not None else style), at, text
        )
        # a command that was wrapped cannot be copied, so it has a line of its own
        if view.command and view.why:
            table.add_row("", "", "", Text(f"→ {view.command}", style="cyan"))
    table.add_row("", Text("since the start", style="dim"), Text(f"{now_s - began_s:.0f} s", style="dim"), "")
    return table


def rung_line(view: RungView) -> str:
    """One line for a log: a rung that was reached, or why it waits."""
    if view.after_s is not None:
        doubt = f"  ! {view.why}" if view.why else ""
        return f"✓ {view.rung:<22} +{view.after_s:.2f} s  {view.text}{doubt}"
    command = f"\n    → {view.command}" if view.command else ""
    return f"{'!' if view.is_stuck else '·'} {view.rung:<22} {view.why}{command}"


def rung_json(view: RungView, began_s: float, now_s: float) -> str:
    facts: dict[str, Any] = {"event": "rung", "rung": view.rung.value, "since_start_s": round(now_s - began_s, 2)}
    facts |= {"reached": view.after_s is not None, "after_s": view.after_s, "text": view.text}
    return json.dumps(facts | {"why": view.why, "command": view.command, "is_stuck": view.is_stuck})


class Shown:
    """Shows the ladder when it changes."""

    def __init__(self, began_s: float, *, as_json: bool) -> None:
        self._began_s, self._as_json = began_s, as_json
        self._said: dict[Rung, tuple[object, ...]] = {}
        self._live: Live | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        if self._as_json or not console.is_terminal:
            yield
            return
        with Live(console=console, refresh_per_second=4, transient=False) as self._live:
            yield

    def show(self, views: Sequence[RungView], now_s: float) -> None:
        if self._live is not None:
            self._live.update(Group(ladder_table(views, self._began_s, now_s)))
            return
        for view in views:
            if view.after_s is None and not view.why:
                continue
            facts = (view.after_s is not None, view.text if view.after_s is not None else "", view.why)
            if self._said.get(view.rung) != facts:
                self._said[view.rung] = facts
                line = rung_json(view, self._began_s, now_s) if self._as_json else rung_line(view)
                typer.echo(line)


# The command.

_WAKE_S = 0.25
_LINES = frozenset({"", "owntracks"})
"""Presets whose line is printed."""
_AT = (53.55, 9.99)


def try_device(
    *,
    folder: Annotated[Path, typer.Option(envvar="WAYBILL_STACK", help="Folder of the stack.")] = Path("var/local"),
    device: Annotated[str, typer.Option(help="Name of the device.", show_default="a new one")] = "",
    port: Annotated[int, typer.Option(help="Port of the vehicle's broker.", show_default="a free one")] = 0,
    at: Annotated[
        str, typer.Option(help="LATITUDE,LONGITUDE of the printed line and of the fence.")
    ] = f"{_AT[0]},{_AT[1]}",
    preset: Annotated[
        str, typer.Option(help="Preset of what the device sends, such as owntracks.", show_default="our JSON")
    ] = "",
    replay: Annotated[Path | None, typer.Option(help="Send your own track (CSV or GPX), shifted to now.")] = None,
    drive: Annotated[bool, typer.Option("--drive", help="Send a simulated drive.")] = False,
    phone: Annotated[bool, typer.Option("--phone", help="Listen for a phone with OwnTracks; shows a QR code.")] = False,
    token_file: Annotated[Path | None, typer.Option(help="A token that `waybill device expect` wrote.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep all files as the beginning of a set-up.")] = False,
    until_draft: Annotated[bool, typer.Option("--until-draft", help="End when every rung is reached.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one a line.")] = False,
) -> None:
    """Try a device of your own: broker, agent, region and centre on this machine, up to a draft line of a bill.

    It uses the local stack that runs in the folder, or starts one. Ctrl-C stops everything that it started.

    Exit status: 0 ended by Ctrl-C, or every rung reached; 1 it could not start; 2 wrong options.

    Example: waybill try --drive
    """
    from deploy.trial.sources import TrialError
    from deploy.trial.trial import Trial, TrialSettings, new_device_name
    from waybill.identity.errors import IdentityError
    from waybill.settings import SettingsError

    if sum((replay is not None, drive, phone)) > 1:
        raise typer.BadParameter("choose one of --replay, --drive and --phone")
    began_s, stopped = time.monotonic(), SystemExit(0)
    # standard output has the ladder; warnings of what is started in threads go to the log
    start_logging(LogSettings(level="error"))
    _check_names(device, preset)
    place, track = _place(at), None
    try:
        track = _track(replay, drive=drive)
        settings = TrialSettings(
            folder=folder.absolute(),
            device=device or new_device_name(),
            port=port,
            token_file=token_file.absolute() if token_file else None,
            preset=preset or ("owntracks" if phone else ""),
            is_kept=keep,
            # a device whose first place is not known gets its fence there
            place=track.end if track else None if phone or preset not in _LINES else place,
        )
        trial = Trial(settings)
        listener = _phone_listener(trial, yes=yes) if phone else None
        with raise_on_signals((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), stopped):
            try:
                _run(trial, _Source(place, track, listener), began_s, as_json=as_json, ends=until_draft)
            finally:
                if not as_json:
                    errors.print("stopping what was started", style="dim")
                trial.stop()
                if keep and not as_json:
                    _print_kept(trial)
    except (TrialError, LocalStackError, SettingsError, IdentityError, OSError) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        if command := getattr(error, "command", ""):
            errors.print(f"→ {command}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _check_names(device: str, preset: str) -> None:
    """Before a minute of starting: the agent would refuse its settings."""
    from deploy.trial.trial import TENANT
    from edge_agent.mapping.settings import preset_tables
    from waybill.identity.names import device_name

    try:
        device_name(TENANT, device or "a-new-one")
        if preset:
            preset_tables(preset)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _place(text: str) -> Place:
    from deploy.trial.sources import Place

    try:
        latitude, longitude = (float(one) for one in text.split(","))
    except ValueError as error:
        raise typer.BadParameter("--at is LATITUDE,LONGITUDE in degrees, such as 53.55,9.99") from error
    if not (-89 <= latitude <= 89 and -180 <= longitude <= 180):
        raise typer.BadParameter("--at: latitude -89 to 89, longitude -180 to 180")
    return Place(latitude, longitude)


def _track(replay: Path | None, *, drive: bool) -> Track | None:
    from deploy.trial.sources import read_track, simulated_track

    if replay is not None:
        return read_track(replay)
    return simulated_track(int(time.time()) % 1000) if drive else None


def _phone_listener(trial: Trial, *, yes: bool) -> PhoneListener:
    from deploy.trial.phone import PhoneListener, lan_address

    listener = PhoneListener.on(lan_address(), trial.settings.device)
    console.print(listener.exposed, markup=False)
    if not yes and not typer.confirm("Open this port until Ctrl-C?", default=False):
        raise typer.Exit(0)
    return listener


class _Source(NamedTuple):
    """What sends the messages: a track, a phone, or whoever copies the line of `place`."""

    place: Place
    track: Track | None
    listener: PhoneListener | None


def _run(trial: Trial, source: _Source, began_s: float, *, as_json: bool, ends: bool) -> None:
    shown = Shown(began_s, as_json=as_json)
    if not as_json:
        errors.print(f"starting {trial.name} on the stack in {trial.settings.folder}", style="dim", soft_wrap=True)
    trial.start()
    reader = trial.reader()
    trial.hear(reader)
    line = _line(trial, source.place)
    if source.listener is not None:
        trial.open_listener(source.listener)
        console.print(source.listener.qr_code(), markup=False)
    elif source.track is None:
        _print_line(line, as_json=as_json)
    else:
        if not as_json:
            console.print(f"{source.track.label}: {len(source.track.fixes)} fixes")
        trial.send(source.track.shifted(time.time_ns() // 1_000_000).messages())
    state = LadderState(
        line=line,
        token_command=trial.token_command,
        map_command=f"edge-agent map try --config {trial.config} --topic TOPIC --payload - < MESSAGE",
        reads=", ".join(reader.filters),
        is_track=source.track is not None,
        since_s=time.monotonic(),
    )
    with shown.opened():
        while not (ends and state.is_complete):
            state = _observe(trial, state)
            trial.is_watched = Rung.ACKNOWLEDGED not in state.reached
            now_s = time.monotonic()
            shown.show([*rungs(state, now_s)], now_s)


def _observe(trial: Trial, state: LadderState) -> LadderState:
    """Takes what was observed within a moment."""
    ends_s = time.monotonic() + _WAKE_S
    while (left_s := ends_s - time.monotonic()) > 0:
        try:
            state = step(state, trial.seen.get(timeout=left_s), time.monotonic())
        except queue.Empty:
            break
    return state


def _line(trial: Trial, place: Place) -> str:
    from deploy.trial.sources import line_to_copy, owntracks_line

    preset, port = trial.settings.preset, trial.broker_port
    if preset == "owntracks":
        return owntracks_line(place, port, f"owntracks/me/{trial.settings.device}")
    # how a message of another preset looks, its device knows
    return f"mosquitto_pub -p {port} -q 1 -t TOPIC -f MESSAGE" if preset else line_to_copy(place, port)


def _print_line(line: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"event": "line", "command": line}))
        return
    drives = "" if "TOPIC" in line else "; this line drives it 600 m, into a fence of 300 m"
    console.print(f"Send a message of your device{drives}:\n")
    typer.echo(f"  {line}\n")
    if shutil.which("mosquitto_pub") is None:
        console.print("mosquitto_pub is missing: sudo apt-get install mosquitto-clients\n")


def _print_kept(trial: Trial) -> None:
    folder, topology = trial.settings.folder, trial.settings.folder / "try" / "topology.toml"
    console.print(f"\nkept in {trial.folder}; change the files and use them again:", soft_wrap=True)
    for file in sorted(trial.folder.glob("*.toml")) + sorted(trial.folder.glob("reference/*")):
        console.print(f"  {file.relative_to(trial.folder)}", markup=False, soft_wrap=True)
    console.print("next:")
    if trial.starts_stack:
        typer.echo(f"  waybill up --detach --folder {folder} --topology {topology}")
    typer.echo(f"  waybill bill preview --lake {folder / 'lake'} --payer {trial.settings.account}")
    typer.echo(f"  waybill try --keep --folder {folder} --device {trial.settings.device}")
