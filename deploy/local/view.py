"""How a stack looks on a terminal."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deploy.local.errors import LinkControlError
from deploy.local.stack import LocalStack
from deploy.local.stack_settings import settings_files
from deploy.local.stack_state import ServerRecord, StackState

__all__ = ["INSECURE", "Announced", "StackView", "asked", "links_table", "servers_table", "settings_line"]

_STYLES = {"healthy": "green", "starting": "yellow", "unknown": "yellow", "stopped": "dim"}
_MB = 1024 * 1024

INSECURE = (
    "INSECURE: plain text, and nobody is asked who they are; everybody on this machine reads and writes all of it"
)
"""What is said of a stack that was started with `--insecure`, wherever it is shown."""


class StackView:
    """The servers of a stack as they are at the moment of drawing."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self._busy = Spinner("dots")

    def __rich__(self) -> RenderableType:
        records = self._stack.records()
        words = {
            "starting": "starting servers",
            "connecting": "applying the topology",
            "ready": f"{asked(records, self._stack.asked_s)}; Ctrl-C stops everything",
            "stopping": "stopping",
            "stopped": "stopped",
            "failed": "failed",
        }[self._stack.phase]
        if self._stack.phase in ("ready", "failed"):
            insecure = [Text(INSECURE, style="bold red")] if self._stack.settings.insecure else []
            written = Text(settings_line(self._stack.folder), style="dim")
            ended = [Text(line, style="bold red") for line in self._stack.ended]
            return Group(servers_table(records), *insecure, *ended, written, Text(words, style="bold"))
        self._busy.update(text=words)
        return Group(servers_table(records), self._busy)


class Announced:
    """What is said of servers while a stack starts: each state once, and nothing of one that was not started yet."""

    def __init__(self) -> None:
        self._started: set[str] = set()
        self._said: set[tuple[str, str]] = set()

    def lines(self, records: Iterable[ServerRecord]) -> list[str]:
        """The lines for what is new."""
        found = list[str]()
        for record in records:
            if record.state != "stopped":
                self._started.add(record.name)
            is_new = (record.name, record.state) not in self._said and record.name in self._started
            if is_new and record.state != "starting":
                self._said.add((record.name, record.state))
                found.append(f"{record.name}: {record.state}")
        return found


def settings_line(folder: Path) -> str:
    """Which settings are in the folder of a stack for whoever works on it; "": none."""
    daemons = sorted(folder.glob("access-*/access.toml"))
    names = [str(file.relative_to(folder)) for file in (*settings_files(folder), *daemons)]
    return f"settings in {folder}: {', '.join(names)}" if names else ""


def asked(records: Sequence[ServerRecord], asked_s: float) -> str:
    """How many servers were healthy when they were asked, and when that was."""
    healthy = sum(record.state == "healthy" for record in records)
    when = datetime.fromtimestamp(asked_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{healthy} of {len(records)} servers healthy when asked at {when} UTC"


def servers_table(records: Iterable[ServerRecord]) -> Table:
    """One row for each server: state, process, memory, addresses; the sum of the memory below."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True)
    total = 0
    rows = []
    for record in records:
        total += record.memory_bytes
        where = "  ".join(record.addresses.values()) if record.kind != "links" else f"{len(record.addresses)} links"
        state = Text(record.state, style=_STYLES.get(record.state, "bold red"))
        memory = f"{record.memory_bytes // _MB} MB" if record.pid else ""
        rows.append((record.name, state, str(record.pid or ""), memory, where))
    table.add_column("server", footer="all")
    table.add_column("state")
    table.add_column("pid", justify="right")
    table.add_column("memory", justify="right", footer=f"{total // _MB} MB")
    table.add_column("address", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def links_table(state: StackState) -> Table:
    """One row for each link: whether it is cut, its delay, and what it carried."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("link", "state", "delay", "connections", "bytes there", "bytes back"):
        table.add_column(column, justify="left" if column in ("link", "state") else "right")
    for name in sorted(state.links):
        try:
            link = state.link(name).state()
        except LinkControlError:
            table.add_row(name, Text("no answer", style="bold red"))
            continue
        how = ("cut, silent" if link.silent else "cut") if link.cut else "open"
        delay = f"{link.delay_s * 1000:.0f} ms"
        carried = f"{link.bytes_forward:,}", f"{link.bytes_back:,}"
        table.add_row(name, Text(how, style="red" if link.cut else "green"), delay, str(link.connections), *carried)
    return table
