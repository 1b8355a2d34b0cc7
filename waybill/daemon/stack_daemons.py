"""Daemons of a stack's folder: gateways, agents and jobs, what is wrong with each, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

from waybill.daemon.stack_folder import Registration, registrations
from waybill.daemon.status_reader import StatusUnavailable, fetch_status
from waybill.settings import Settings, one_line

State = Literal["healthy", "not healthy", "unknown", "no answer", "ended", "not started"]

_GOOD: Final = {"acknowledges", "keeps", "readable", "stores", "valid"}
"""What an agent says of its parts that work."""
_TIMEOUT_S: Final = 3.0
_AT_ONCE: Final = 16
_EXPECTED: Final = (
    ("gateway-*.toml", "fleet-gateway run"),
    ("agent-*.toml", "edge-agent run"),
    ("cloud.toml", "cloud-jobs ingest"),
    ("cloud.toml", "cloud-jobs usage --follow"),
)
"""The settings files of a stack's folder, and what is run with them to bring a vehicle's records to the tables."""


class DaemonStatus(Settings):
    """A daemon: its program and settings file, what is wrong ("" for nothing), and the next command.

    `state`: `healthy`, `not healthy` and `unknown` are its own words; `no answer`: its process runs; `ended`: it did
    not stop in order; `not started`: it was stopped in order, or never started, which is no fault.
    """

    program: str
    config: str
    state: State
    pid: int | None = None
    problem: str = ""
    next: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.state in {"not healthy", "no answer", "ended"}


def read_daemons(folder: Path) -> list[DaemonStatus]:
    """The daemons that ran with settings of this folder, asked now, and those that could. Raises OSError."""
    known = registrations(folder)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [*pool.map(ask_daemon, known), *_not_started(folder, known)]


def _not_started(folder: Path, known: Iterable[Registration]) -> Iterator[DaemonStatus]:
    there = [(one.program.split()[:2], one.config) for one in known]
    for pattern, program in _EXPECTED:
        for config in sorted(folder.absolute().glob(pattern)):
            if (program.split()[:2], str(config)) not in there:
                start = shlex.join([*program.split(), "--config", str(config)])
                yield DaemonStatus(program=program, config=str(config), state="not started", next=start)


def ask_daemon(one: Registration, timeout_s: float = _TIMEOUT_S) -> DaemonStatus:
    """The status of a daemon, asked now. `timeout_s` bounds each wait for bytes."""
    start = shlex.join([*one.program.split(), "--config", one.config])
    known: dict[str, Any] = {"program": one.program, "config": one.config}
    if not one.is_running:
        problem = one.error or "it was killed, or the machine was"
        return DaemonStatus(**known, state="ended", problem=one_line(problem), next=start)
    known |= {"pid": one.pid}
    if not one.status:
        # a job that runs once, or one without a port for its health
        return DaemonStatus(**known, state="unknown", problem="it serves no status")
    host, _, port = one.status.rpartition(":")
    try:
        values = fetch_status(host, int(port), "health", timeout_s=timeout_s, also_unhealthy=True)
    except (StatusUnavailable, ValueError) as error:
        return DaemonStatus(
            **known, state="no answer", problem=f"{one.status}: {error}", next=f"kill {one.pid}; {start}"
        )
    healthy = values.get("healthy")
    problem = "" if healthy is True else one_line(_problem(values))
    if healthy is not False:
        return DaemonStatus(**known, state="healthy" if healthy else "unknown", problem=problem)
    return DaemonStatus(**known, state="not healthy", problem=problem, next=_details(one))


def _problem(values: dict[str, Any]) -> str:
    """Why a daemon is not healthy, from the answer of its `/health`."""
    problems = values.get("problems")
    if said := values.get("last_error") or ("; ".join(map(str, problems)) if isinstance(problems, list) else ""):
        return str(said)
    # the agent has a word for each of its parts
    words = {name: word for name, word in values.items() if isinstance(word, str) and word not in _GOOD}
    parts = [f"{name.replace('_', ' ')}: {word}" for name, word in words.items()]
    parts += [f"{name.replace('_', ' ')}: no" for name, word in values.items() if word is False and name != "healthy"]
    return ", ".join(parts)


def _details(one: Registration) -> str:
    """The command that shows more about a daemon."""
    program = one.program.split()
    verb = "status" if program[0] in {"cloud-jobs", "edge-agent"} else shlex.join([*program[1:-1], "status"])
    return shlex.join([program[0], *verb.split(), "--config", one.config])
