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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import psutil
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deploy.local import LocalStackError
from deploy.trial.ladder import LadderState, Rung, RungView, rungs, step
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.signals import handle_signals, raise_on_signals

if TYPE_CHECKING:
    from deploy.trial.phone import PhoneListener
    from deploy.trial.servers import Place, TrialServers
    from deploy.trial.sources import Track
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


def total_line(state: LadderState, began_s: float, *, as_json: bool = False) -> str:
    """How long the whole ladder took; "" while a rung is missing."""
    if state.complete_s is None or state.heard_s is None:
        return ""
    after_s, since_s = state.complete_s - state.heard_s, state.complete_s - began_s
    if as_json:
        return json.dumps({"event": "complete", "after_s": after_s, "since_start_s": round(since_s, 2)})
    return f"every rung reached {after_s:.1f} s after the message, {since_s:.1f} s after the start of the command"


def rung_line(view: RungView) -> str:
    """One line for a log: a rung that was reached, or why it waits."""
    if view.after_s is not None:
        doubt = f"  ! {view.why}" if view.why else ""
        return f"✓ {view.rung:<22} +{view.after_s:.2f} s  {view.text}{doubt}".replace("\n", "\n    ")
    command = f"\n    → {view.command}" if view.command else ""
    return f"{'!' if view.is_stuck else '·'} {view.rung:<22} {view.why}{command}"


def rung_json(view: RungView, began_s: float, now_s: float) -> str:
    facts: dict[str, Any] = {"event": "rung", "rung": view.rung.value, "since_start_s": round(now_s - began_s, 2)}
    facts |= {"reached": view.after_s is not None, "after_s": view.after_s, "text": view.text}
    return json.dumps(facts | {"why": view.why, "command": view.command, "is_stuck": view.is_stuck})


class Shown:
    """Shows the ladder when it changes."""

    def __init__(self, began_s: float, *, as_json: bool) -> None:
        self._began_s, self.as_json = began_s, as_json
        self._said: dict[Rung, tuple[object, ...]] = {}
        self._is_total_said = False
        self._live: Live | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        if self.as_json or not console.is_terminal:
            yield
            return
        with Live(console=console, refresh_per_second=4, transient=False) as self._live:
            yield

    def line(self, line: str) -> None:
        """The command that sends a message."""
        if self.as_json:
            typer.echo(json.dumps({"event": "line", "command": line}))
            return
        drives = "" if "TOPIC" in line else "; this line drives it 600 m, into a fence of 300 m"
        console.print(f"Send a message of your device{drives}:\n")
        typer.echo(f"  {line}\n")
        if shutil.which("mosquitto_pub") is None:
            console.print("mosquitto_pub is missing: sudo apt-get install mosquitto-clients\n")

    def phone(self, listener: PhoneListener) -> None:
        """How a phone is set up. JSON has the password: whoever asked for it has no camera."""
        if self.as_json:
            typer.echo(json.dumps({"event": "phone", "setup_url": listener.setup_url}))
        else:
            console.print(listener.qr_code(), markup=False)

    def show(self, state: LadderState, now_s: float) -> None:
        views, total = [*rungs(state, now_s)], total_line(state, self._began_s, as_json=self.as_json)
        if self._live is not None:
            table = ladder_table(views, self._began_s, now_s)
            self._live.update(Group(table, Text(total)) if total else Group(table))
            return
        for view in views:
            if view.after_s is None and not view.why:
                continue
            facts = (view.after_s is not None, view.text if view.after_s is not None else "", view.why)
            if self._said.get(view.rung) != facts:
                self._said[view.rung] = facts
                line = rung_json(view, self._began_s, now_s) if self.as_json else rung_line(view)
                typer.echo(line)
        if total and not self._is_total_said:
            self._is_total_said = True
            typer.echo(total)


# The command.

_WAKE_S = 0.25
_LINES = frozenset({"", "owntracks"})
"""Presets whose line is printed."""
_AT = (53.55, 9.99)
_UNEQUAL = 3
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


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

    Exit status: 0 ended by Ctrl-C, or every rung reached; 1 it could not start; 2 wrong options; 3 the draft was
    computed twice and is not equal.

    Example: waybill try --drive
    """
    from deploy.trial.errors import TrialError
    from deploy.trial.servers import TrialServers, TrialSettings, new_device_name
    from waybill.identity.errors import IdentityError
    from waybill.settings import SettingsError

    if sum((replay is not None, drive, phone)) > 1:
        raise typer.BadParameter("choose one of --replay, --drive and --phone")
    began_s, stopped = _process_start_s(), SystemExit(0)
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
        source = _Source(place, track, _phone_listener(settings.device, yes=yes) if phone else None)
        servers = TrialServers(settings)
        with raise_on_signals(_ENDS, stopped):
            try:
                _run(servers, source, Shown(began_s, as_json=as_json), stopped, ends=until_draft)
            finally:
                if not as_json:
                    errors.print("stopping what was started", style="dim")
                # a second Ctrl-C would leave servers running
                with handle_signals(_ENDS, lambda _: None):
                    servers.stop()
                if keep and not as_json:
                    _print_kept(servers)
        raise stopped
    except (TrialError, LocalStackError, SettingsError, IdentityError, OSError) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        if command := getattr(error, "command", ""):
            errors.print(f"→ {command}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _check_names(device: str, preset: str) -> None:
    """Before a minute of starting: the agent would refuse its settings."""
    from deploy.trial.servers import TENANT
    from edge_agent.mapping.settings import preset_tables
    from waybill.identity.names import device_name

    try:
        device_name(TENANT, device or "a-new-one")
        if preset:
            preset_tables(preset)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _process_start_s() -> float:
    """When this process was started, by the monotonic clock."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())


def _from_here(path: Path) -> Path:
    """A shorter form of a path: from the working folder, where it is inside."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _place(text: str) -> Place:
    from deploy.trial.servers import Place

    try:
        latitude, longitude = (float(one) for one in text.split(","))
    except ValueError as error:
        raise typer.BadParameter("--at is LATITUDE,LONGITUDE in degrees, such as 53.55,9.99") from error
    if not (-89 <= latitude <= 89 and -180 <= longitude <= 180):
        raise typer.BadParameter("--at: latitude -89 to 89, longitude -180 to 180")
    return Place(latitude, longitude)


def _track(replay: Path | None, *, drive: bool) -> Track | None:
    if replay is None and not drive:
        return None
    from deploy.trial.sources import read_track, simulated_track

    return simulated_track(int(time.time()) % 1000) if replay is None else read_track(replay)


def _phone_listener(device: str, *, yes: bool) -> PhoneListener:
    from deploy.trial.phone import PhoneListener, lan_address

    listener = PhoneListener.on(lan_address(), device)
    errors.print(listener.exposed, markup=False)
    if not yes and not typer.confirm("Open this port until Ctrl-C?", default=False, err=True):
        raise typer.Exit(0)
    return listener


class _Source(NamedTuple):
    """What sends the messages: a track, a phone, or whoever copies the line of `place`."""

    place: Place
    track: Track | None
    listener: PhoneListener | None


def _run(servers: TrialServers, source: _Source, shown: Shown, stopped: SystemExit, *, ends: bool) -> None:
    """Shows the ladder until a signal raises `stopped`, or `ends` with the draft. Sets the exit status in it."""
    folder = _from_here(servers.settings.folder)
    servers.start()
    if not shown.as_json:
        stack = "starting the stack" if servers.starts_stack else "on the running stack"
        errors.print(f"fleet/{servers.settings.device}: {stack} in {folder}", style="dim", soft_wrap=True)
    # it imports for seconds, in which the stack and Spark start
    from deploy.trial.trial import Trial

    trial = Trial(servers)
    trial.start()
    reader = trial.reader()
    trial.hear(reader)
    if source.track is not None and not shown.as_json:
        console.print(f"{source.track.label}: {len(source.track.fixes)} fixes")
    line = _line(trial, source)
    if source.listener is not None:
        trial.open_listener(source.listener)
        shown.phone(source.listener)
    elif source.track is None:
        shown.line(line)
    else:
        trial.send(source.track.shifted(time.time_ns() // 1_000_000).messages())
    state = LadderState(
        line=line,
        token_command=trial.token_command,
        map_command=f"edge-agent map try --config {trial.config} --topic TOPIC --payload - < MESSAGE",
        bill_command=f"waybill reconcile --lake {folder / 'lake'} --period {datetime.now(UTC):%Y-%m}",
        reads=", ".join(reader.filters),
        is_track=source.track is not None,
        since_s=time.monotonic(),
    )
    with shown.opened():
        while not (ends and (state.is_complete or state.is_unequal)):
            state = _observe(servers, state)
            trial.is_watched = Rung.ACKNOWLEDGED not in state.reached
            stopped.code = _UNEQUAL if state.is_unequal else 0
            shown.show(state, time.monotonic())


def _observe(servers: TrialServers, state: LadderState) -> LadderState:
    """Takes what was observed within a moment."""
    ends_s = time.monotonic() + _WAKE_S
    while (left_s := ends_s - time.monotonic()) > 0:
        try:
            state = step(state, servers.seen.get(timeout=left_s), time.monotonic())
        except queue.Empty:
            break
    return state


def _line(trial: Trial, source: _Source) -> str:
    """How a message is sent."""
    from deploy.trial.sources import line_to_copy, owntracks_line

    preset, port, place = trial.settings.preset, trial.broker_port, source.place
    if source.listener is not None:
        return source.listener.way_out
    if source.track is not None:
        return f"waybill try --drive --folder {trial.settings.folder}"
    if preset == "owntracks":
        return owntracks_line(place, port, f"owntracks/me/{trial.settings.device}")
    # how a message of another preset looks, its device knows
    return f"mosquitto_pub -p {port} -q 1 -t TOPIC -f MESSAGE" if preset else line_to_copy(place, port)


def _print_kept(trial: TrialServers) -> None:
    folder = _from_here(trial.settings.folder)
    topology = folder / "try" / "topology.toml"
    console.print(f"\nkept in {_from_here(trial.folder)}; change the files and use them again:", soft_wrap=True)
    for file in sorted(trial.folder.glob("*.toml")) + sorted(trial.folder.glob("reference/*")):
        console.print(f"  {file.relative_to(trial.folder)}", markup=False, soft_wrap=True)
    console.print("next:")
    if trial.starts_stack:
        more = f" --topology {topology}" if topology.exists() else ""
        typer.echo(f"  waybill up --detach --folder {folder}{more}")
    typer.echo(f"  waybill bill preview --lake {folder / 'lake'} --payer {trial.settings.account}")
    typer.echo(f"  waybill try --keep --folder {folder} --device {trial.settings.device}")
