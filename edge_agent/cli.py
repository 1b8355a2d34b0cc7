"""The commands of the agent."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.devices import load_device, load_devices
from edge_agent.errors import AgentError
from edge_agent.mapping.map_cli import app as map_app
from waybill.daemon.process import add_version_option, errors_as_messages
from waybill.settings import SettingsError

app = typer.Typer(
    rich_markup_mode=None,
    name="edge-agent",
    help="Store the vehicle's messages and deliver them to a region. Records that must be dropped are declared lost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_version_option(app, "edge-agent")
app.add_typer(map_app, name="map")
# Not `exists=True`: typer would end with 2, and systemd would start an agent without a file again and again.
Config = Annotated[Path, typer.Option("--config", "-c", help="The agent's settings, TOML.")]
Device = Annotated[str, typer.Option("--device", help="Which one, if the settings have several devices.")]
_LIGHT = (
    "import sys; sys.modules['rich'] = None; from edge_agent.daemon import main; raise SystemExit(main(sys.argv[1:]))"
)
"""The daemon without rich, which structlog would import for tracebacks that a daemon never draws: 6 MB less."""


@app.command()
def run(config: Config) -> None:
    """Run the agent until SIGTERM.

    Example: edge-agent run --config agent.toml
    """
    # The light process could report a missing package only with a traceback.
    for package in ("paho", "prometheus_client"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    # Isolated as this process is, and in no case with modules of the working folder.
    alone = "-I" if sys.flags.isolated else "-P"
    command = [sys.executable, alone, "-c", _LIGHT, str(config.absolute())]
    # glibc has one arena for each core, and each keeps freed memory: two arenas keep less.
    os.execve(command[0], command, {**os.environ, "MALLOC_ARENA_MAX": "2"})  # noqa: S606 - the light process takes over


@app.command()
def check_config(config: Config) -> None:
    """Check a settings file, the files it refers to, and the examples of its mappings.

    Example: edge-agent check-config --config agent.toml
    """
    from edge_agent.checking import problems

    with errors_as_lines():
        devices = [one.settings for one in load_devices(config)]
        settings = devices[0]
        found = [*dict.fromkeys(problem for one in devices for problem in problems(one))]
        if settings.mappings:
            from edge_agent.mapping.examples import example_faults

            found += example_faults(settings.mappings)
        if found:
            raise SettingsError(str(config), found)
    for warning in settings.plain_text():
        typer.echo(f"{config}: warning: {warning}", err=True)
    regions = ", ".join(one.region for one in settings.uplinks)
    mapped = ""
    if settings.mappings:
        names = ", ".join(one.name for one in settings.mappings)
        examples = sum(len(one.examples) for one in settings.mappings)
        mapped = f", mappings {names} (correct examples: {examples})"
    for one in devices:
        about = f"Device {one.device.id}, uplinks {regions}, buffer {one.buffer.path}{mapped}"
        typer.echo(f"{config}: valid. {about}")


def _option(help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=help_text, show_default=False)
    return option


@app.command()
def setup(
    *,
    out: Annotated[Path, typer.Option("--out", help="The settings file to write.")] = Path("agent.toml"),
    tenant: Annotated[str, _option("Owner of the device.")] = "",
    device: Annotated[str, _option("Name of the device.")] = "",
    region: Annotated[str, _option("Name of the region.")] = "",
    ca: Annotated[str, _option("File of the root certificate.")] = "",
    region_host: Annotated[str, _option("Host of the region's broker.")] = "",
    region_port: Annotated[str, _option("Its port (8883).")] = "",
    claim: Annotated[str, _option("token or certificate.")] = "",
    token_file: Annotated[str, _option("File of the one-time token.")] = "",
    enrolment_port: Annotated[str, _option("Port of the enrolment broker (8884).")] = "",
    certificate: Annotated[str, _option("File of the device's certificate, instead of a token.")] = "",
    key: Annotated[str, _option("File of its private key.")] = "",
    vehicle_host: Annotated[str, _option("Host of the vehicle's broker (127.0.0.1).")] = "",
    vehicle_port: Annotated[str, _option("Its port (1883).")] = "",
    sensors: Annotated[str, _option("native, or the preset of what the sensors send.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: options and defaults count.")] = False,
) -> None:
    """Write a settings file: ask what is missing, and check each answer by trying it.

    Exit status: 0 written; 1 an answer does not work, or the file exists; 78 the settings do not load.

    Example: edge-agent setup --tenant acme --device bus-1 --out agent.toml
    """
    from edge_agent.guided_setup import QUESTIONS, Interview, next_commands, settings_text, write_settings

    found = locals()
    given = {one.name: str(found[one.name]) for one in QUESTIONS}
    if certificate and not claim:
        given["claim"] = "certificate"
    with errors_as_lines():
        # before a dozen questions are asked
        if out.exists() and not force:
            raise AgentError(f"{out} exists and stays as it is; --force replaces it, --out names another file")
        if not os.access(out.absolute().parent, os.W_OK | os.X_OK):
            raise AgentError(f"this user cannot write into {out.absolute().parent}; --out names another file")
        ask = None if yes else lambda text, default: str(typer.prompt(text, default=default or None))
        answers = Interview(given, ask, typer.echo).answers()
        write_settings(out, settings_text(answers), replace=force)
    typer.echo(f"{out}: written. Next:")
    for command in next_commands(out, answers):
        typer.echo(f"  {command}")


@app.command()
def broker_conf(
    config: Config,
    listen: Annotated[
        str, typer.Option("--listen", help="Address at which the broker listens, if it is not intake.host.")
    ] = "",
) -> None:
    """Print a Mosquitto configuration for the vehicle's broker that queues messages while the agent is down.

    Example: edge-agent broker-conf --config agent.toml > /etc/mosquitto/mosquitto.conf
    """
    from edge_agent.vehicle_broker import broker_conf as text_of

    with errors_as_lines():
        settings = load_devices(config)[0].settings
        if listen in {"0.0.0.0", "::", "*"}:  # noqa: S104 - it is what is refused
            raise AgentError(f"{listen} means every network of the vehicle: set one address")
        typer.echo(text_of(settings.intake, listen), nl=False)


@app.command()
def enrol(config: Config, device: Device = "") -> None:
    """Enrol the device once, with its token or factory certificate. A running agent enrols by itself.

    Example: edge-agent enrol --config agent.toml
    """
    from edge_agent.checking import check_user
    from edge_agent.enrolment.enrolment_loop import enrol_once

    with errors_as_lines():
        settings = load_device(config, device)
        check_user(settings)
        typer.echo(enrol_once(settings))


@app.command()
def status(
    config: Config,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: Device = "",
) -> None:
    """Show link, unreadable messages, buffer and counters. Without a running agent, only the buffer is known.

    Of several devices, `--device` shows one in full.

    Example: edge-agent status --config agent.toml --json
    """
    from edge_agent.text_tables import print_devices, print_status, state_of, states_of

    with errors_as_lines():
        devices = [one.settings for one in load_devices(config)]
        shows_all = len(devices) > 1 and not device
        states = states_of(devices) if shows_all else {"": state_of(load_device(config, device))}
    if as_json:
        typer.echo(json.dumps({"devices": states} if shows_all else states[""]))
    elif shows_all:
        print_devices(states)
    else:
        print_status(states[""])
    if shows_all and any("problem" in one for one in states.values()):
        raise typer.Exit(1)


@app.command()
def export(config: Config, device: Device = "") -> None:
    """Write all waiting records and tombstones as JSON lines. The buffer does not change.

    Example: edge-agent export --config agent.toml > records.jsonl
    """
    from edge_agent.inspection import exported_lines

    with errors_as_lines():
        for line in exported_lines(load_device(config, device)):
            sys.stdout.write(line + "\n")


def errors_as_lines() -> AbstractContextManager[None]:
    """Errors that a command expects become lines on stderr and an exit status."""
    return errors_as_messages("edge-agent", AgentError)
