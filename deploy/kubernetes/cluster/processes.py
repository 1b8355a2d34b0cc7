"""Processes of the cluster: started in a network namespace, recorded, and ended by what was recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from deploy.kubernetes.cluster.layout import Layout

_COMMAND_S = 60
_END_S = 10.0


class ClusterError(Exception):
    """The cluster cannot be started, used or ended; the message says what to do."""


@dataclass
class Processes:
    """What was started, by name: process id and start time, so that a reused id is nobody of ours."""

    layout: Layout
    nodes: int = 0
    started: dict[str, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def recorded(cls, layout: Layout) -> Processes:
        """Those of the cluster that runs or was not ended. Raises ClusterError without one."""
        try:
            content = json.loads(layout.state.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ClusterError("no cluster runs: start it with `python -m deploy.kubernetes.cluster up`") from None
        started = {name: (int(pid), float(began)) for name, (pid, began) in content["started"].items()}
        return cls(layout, content["nodes"], started)

    def start(
        self, name: str, command: Sequence[str], *, namespace: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a process in a network namespace (without a name: this one); its output goes to `NAME.log`."""
        words = [f"--net=/run/netns/{namespace}", *command]
        with (self.layout.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["nsenter", *words] if namespace else list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | dict(environment or {}),
            )
        self.started[name] = process.pid, psutil.Process(process.pid).create_time()
        self.record()

    def record(self) -> None:
        content = {"nodes": self.nodes, "started": self.started}
        self.layout.state.write_text(json.dumps(content), encoding="utf-8")

    def alive(self, name: str) -> psutil.Process | None:
        pid, began = self.started.get(name, (0, 0.0))
        try:
            process = psutil.Process(pid)
            same = abs(process.create_time() - began) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return None
        return process if pid and same else None

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a process, by SIGKILL where it does not follow within 10 s."""
        process = self.alive(name)
        if process is not None:
            process.send_signal(how)
            ends_at = time.monotonic() + _END_S
            while self.alive(name) is not None and time.monotonic() < ends_at:
                time.sleep(0.1)
            if self.alive(name) is not None:
                process.kill()
        self.started.pop(name, None)


def run(*command: str, namespace: str = "", text: str = "", check: bool = True) -> str:
    """The output of a command, in a network namespace if one is named. Raises ClusterError."""
    words = ["nsenter", f"--net=/run/netns/{namespace}", *command] if namespace else list(command)
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except FileNotFoundError:
        raise ClusterError(f"{words[0]} is missing: run `make kubernetes-tools`") from None
    if check and done.returncode:
        raise ClusterError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def wait_for(what: str, seconds: float, *command: str) -> None:
    """Repeat a command until it ends with 0. Raises ClusterError after that time."""
    ends_at = time.monotonic() + seconds
    while subprocess.run(list(command), capture_output=True, timeout=_COMMAND_S, check=False).returncode:
        if time.monotonic() > ends_at:
            raise ClusterError(
                f"{what} did not answer within {seconds:.0f} s; its output is in the cluster's log folder"
            )
        time.sleep(0.5)


def remove(path: Path) -> None:
    """Remove a file or socket, or an empty folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
