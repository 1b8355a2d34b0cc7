"""Commands as processes of their own: how long they take, and the most memory that each kind of process held."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
_PAUSE_S = 0.2


class Ran(NamedTuple):
    """What a command took: seconds from its start to its end, those that cores worked for it, and MiB: its own, of the
    largest Python process below it (a worker of Spark) and of the JVM; 0 where there was none."""

    seconds: float
    cpu_s: float
    own_mib: float
    worker_mib: float
    jvm_mib: float


def ran(arguments: Sequence[str], output: Path, *, allowed: Sequence[int] = (0,)) -> Ran:
    """Runs a module of the project by this interpreter; what it prints goes to a file."""
    peaks: dict[tuple[int, str], float] = {}
    before = _worked()
    with output.open("wb") as file:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=file)
        while process.poll() is None:
            for pid, kind in _tree(process.pid):
                peaks[pid, kind] = max(peaks.get((pid, kind), 0), _peak_mib(pid))
            time.sleep(_PAUSE_S if time.perf_counter() - began > 1 else _PAUSE_S / 10)
        seconds = time.perf_counter() - began
    assert process.returncode in allowed, f"{arguments} ended with {process.returncode}"
    own = max((peak for (pid, _), peak in peaks.items() if pid == process.pid), default=0)
    others = {pid_kind: peak for pid_kind, peak in peaks.items() if pid_kind[0] != process.pid}
    worker = max((peak for (_, kind), peak in others.items() if kind == "python"), default=0)
    return Ran(
        seconds,
        _worked() - before,
        own,
        worker,
        max((peak for (_, kind), peak in others.items() if kind == "java"), default=0),
    )


def _worked() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def imported_mib(module: str, folder: Path) -> float:
    """MiB of a process that only imports a module, and so what is held before any work is done."""
    probe = folder / "probe.py"
    probe.write_text(
        f"import re, {module}\nfrom pathlib import Path\n"
        f"print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(probe)], capture_output=True, check=True, text=True, cwd=Path.cwd())
    return int(done.stdout) / 1024


def _tree(root: int) -> list[tuple[int, str]]:
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            parents[int(folder.name)] = (int(rest.split()[1]), "java" if name == "java" else "python")
    found = {root}
    grew = True
    while grew:
        below = {pid for pid, (parent, _) in parents.items() if parent in found} - found
        found |= below
        grew = bool(below)
    return [(pid, parents[pid][1]) for pid in found if pid in parents]


def _peak_mib(pid: int) -> float:
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    except OSError:
        return 0
    return int(found[1]) / 1024 if found else 0
