"""Every command, the extra that it needs, and how it is started.

A command is imported when it is used: `waybill status` must not wait for Spark's imports, and with the extra `edge`
alone the other commands say what to install. So importing this module imports the standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from waybill.daemon.signals import handle_signals

if TYPE_CHECKING:
    import typer


@contextmanager
def says_interrupt(command: str) -> Iterator[None]:
    """Report the first SIGINT on stderr; each one raises KeyboardInterrupt.

    Other SIGINT handlers, and an ignored SIGINT, stay as they are. After an interrupt the process does not wait for
    threads that hang in a connection: Python's own shutdown would crash with them.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    is_interrupted = False

    def interrupt(_: int) -> NoReturn:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            # Not through `sys.stderr`, which the interrupted code may be in the midst of writing to.
            os.write(2, f"\n{command}: interrupted; closing connections, which may take seconds\n".encode())
        raise KeyboardInterrupt

    before = frozenset(threading.enumerate())
    with handle_signals([signal.SIGINT], interrupt):
        try:
            yield
        except SystemExit as ended:
            if is_interrupted and any(one.daemon for one in threading.enumerate() if one not in before):
                _end_at_once(ended)
            raise


def _end_at_once(ended: SystemExit) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(ended.code if isinstance(ended.code, int) else 1)


EXIT_MISSING_EXTRA = 69
"""EX_UNAVAILABLE of sysexits.h: a package that the command needs is not installed."""


class LazyCommand(NamedTuple):
    """The place of a command, `module:attribute` (a Typer app or a function), the extra it needs, and a line of
    help.
    """

    target: str
    extra: str
    help: str

    def load(self) -> Any:
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


PROGRAMS = {
    "cloud-jobs": LazyCommand("cloud_jobs.__main__:app", "cloud", "The jobs of the centre."),
    "edge-agent": LazyCommand("edge_agent.__main__:app", "edge", "The daemon on the vehicle."),
    "fleet-gateway": LazyCommand("gateway.cli:app", "gateway", "From a region's MQTT broker to Pulsar."),
    "fleet-simulator": LazyCommand(
        "simulator.__main__:app", "simulator", "Simulate a fleet and compute its correct bill."
    ),
}
"""The commands of their own."""

SUBCOMMANDS = {
    "up": LazyCommand("deploy.local.cli:up", "local", "Start the local stack."),
    "status": LazyCommand("deploy.local.cli:status", "local", "Show servers, daemons and links, and what is wrong."),
    "link": LazyCommand("deploy.local.cli:link", "local", "Cut, heal or slow a link of the local stack."),
    "down": LazyCommand("deploy.local.cli:down", "local", "Stop the local stack."),
    "demo": LazyCommand(
        "deploy.demo.cli:demo", "local", "Run Waybill from vehicles to a checked bill on real servers."
    ),
    "try": LazyCommand("deploy.trial.cli:try_device", "local", "Try a device of your own, up to a draft of its bill."),
    "console": LazyCommand("console.cli:console", "console", "Show fleet, bills and health as pages with a map."),
    "console-link": LazyCommand("console.cli:console_link", "console", "Make a link to one invoice, for a customer."),
    "health": LazyCommand("console.cli:health", "console", "Show what is wrong anywhere, what it affects, what to do."),
    "events": LazyCommand("console.cli:events", "console", "Show events at fences, and encounters."),
    "fleet": LazyCommand("console.cli:fleet", "console", "Show each device: last fix, state, distance, completeness."),
    "kubernetes": LazyCommand("deploy.kubernetes.cli:app", "gateway", "Say what is wrong with an installation there."),
    "topology": LazyCommand("geo.replication.cli:app", "gateway", "Plan, apply, verify and watch geo-replication."),
    "device": LazyCommand(
        "waybill.identity.device_cli:app", "gateway", "Register, suspend, resume and revoke devices."
    ),
    "drill": LazyCommand(
        "deploy.drill.cli:app", "local", "Stop a cluster or cut a link on purpose and count every record."
    ),
    "canary": LazyCommand(
        "gateway.canary.cli:app", "local", "Run a canary vehicle with a known route and check every hop."
    ),
    "push": LazyCommand("edge_agent.push.push_cli:app", "gateway", "Operators' keys, and signed settings for devices."),
    "alerts": LazyCommand("gateway.webhooks.cli:app", "gateway", "Show live alerts and deliver them to webhooks."),
    "reference": LazyCommand(
        "cloud_jobs.reference.commands:app", "cloud", "Check, publish and show contracts and fences."
    ),
    "decisions": LazyCommand(
        "cloud_jobs.billing.certificates.cli:app", "cloud", "Record decisions about devices that block a bill."
    ),
    "pki": LazyCommand(
        "waybill.identity.pki_cli:app", "gateway", "Create authorities, and certificates for devices and servers."
    ),
    "reconcile": LazyCommand(
        "cloud_jobs.reconcile.cli:reconcile", "cloud", "Compare the counts of a period from the device to the invoice."
    ),
    "bill": LazyCommand("cloud_jobs.bill_cli:app", "cloud", "Close, issue, adjust, void and show invoices."),
}
"""The subcommands of `waybill`."""

_WITHOUT_PANDAS = {"bill", "console", "console-link", "decisions", "events", "fleet", "health", "reconcile"}
"""Subcommands that use Arrow and no Spark. Arrow looks for pandas when it is imported, and takes a third of a second
to import it: as long as many an answer takes."""


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas': this command does without it", name=name)


def use_arrow_alone() -> None:
    """Makes pandas look uninstalled in this process, and lets Arrow allocate from the heap of the C library.

    Arrow's own allocator keeps 20 MB of a page that was read. It is chosen when Arrow is imported.
    """
    sys.meta_path.insert(0, _NoPandas())
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


_OF_STACK = {
    *("alerts", "cloud-jobs", "console", "console-link", "device", "events", "fleet", "health", "reference", "topology")
}
"""Commands that find their settings in the folder of a local stack."""


def stack_option(command: str, arguments: list[str]) -> list[str]:
    """The arguments without `--folder FOLDER`, which becomes $WAYBILL_STACK, for commands of a local stack."""
    if command not in _OF_STACK:
        return arguments
    left: list[str] = []
    words = iter(arguments)
    for word in words:
        name, is_joined, value = word.partition("=")
        # a command that lacks the folder reports the option itself
        if name == "--folder" and (folder := value if is_joined else next(words, "")):
            os.environ["WAYBILL_STACK"] = folder
        elif word == "--":
            return [*left, word, *words]
        else:
            left.append(word)
    return left


@contextmanager
def extra_installed(command: str, extra: str) -> Iterator[None]:
    """If an import fails because a package is not installed, name the extra that installs it and exit with 69."""
    try:
        yield
    except ModuleNotFoundError as error:
        # A dotted name is a module missing from a package that is there: a defect, not a missing extra.
        if error.name is None or "." in error.name:
            raise
        sys.stderr.write(f"{command} needs the package {error.name}: install the extra {extra} (docs/install.md)\n")
        raise SystemExit(EXIT_MISSING_EXTRA) from error


def command_line(commands: Mapping[str, LazyCommand], arguments: Sequence[str], help_text: str) -> typer.Typer:
    """The app for these arguments: only the named command is imported, the others have a line of help."""
    # The agent blocks a signal before anything that takes long is imported.
    import typer  # noqa: PLC0415

    from waybill.daemon.process import add_version_option  # noqa: PLC0415

    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False, help=help_text)
    add_version_option(app, "waybill")
    asked = next(iter(arguments), None)
    for name, command in commands.items():
        target = command.load() if name == asked else _root
        if isinstance(target, typer.Typer):
            # as of commands: asked for, it has its own help
            app.add_typer(target, name=name, help=target.info.help if name == asked else command.help)
        else:
            # The real command has its own help; of the others this line is all that is known without their import.
            app.command(name, help=None if name == asked else command.help)(target)
    return app


def waybill() -> None:
    """Run the subcommand that the arguments name."""
    arguments = sys.argv[1:]
    asked = next(iter(arguments), "")
    arguments = sys.argv[1:] = stack_option(asked, arguments)
    if asked in _WITHOUT_PANDAS:
        use_arrow_alone()
    extra = SUBCOMMANDS[asked].extra if asked in SUBCOMMANDS else "local"
    # Around the run too: commands import much of what they need when they are called.
    name = f"waybill {asked}".strip()
    with says_interrupt(name), extra_installed(name, extra):
        command_line(SUBCOMMANDS, arguments, "Waybill: from the vehicle to the invoice.")()


def cloud_jobs() -> None:
    _run("cloud-jobs")


def edge_agent() -> None:
    _run("edge-agent")


def fleet_gateway() -> None:
    _run("fleet-gateway")


def fleet_simulator() -> None:
    _run("fleet-simulator")


def _run(program: str) -> None:
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version  # noqa: PLC0415

        # Before the program is imported, which takes ten times as long.
        sys.stdout.write(f"{program} {version('fleet-waybill')}\n")
        return
    sys.argv[1:] = stack_option(program, sys.argv[1:])
    command = PROGRAMS[program]
    with extra_installed(program, command.extra):
        command.load()()


def _root() -> None:
    """Stands for the commands that were not asked for."""
