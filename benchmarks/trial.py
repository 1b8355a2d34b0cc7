"""`make bench-trial`: from `waybill try` with no stack running to a draft line. Exit status 1: a limit is missed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import benchmark_folder, limited, print_figures

ROUNDS = 3


def complete(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "waybill", "try", "--json", "--until-draft", "--folder", str(folder)]
    found: dict[str, dict[str, Any]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trial:
        for event in map(json.loads, trial.stdout or ()):
            found[event["event"]] = event
            if event["event"] == "line":
                subprocess.run(["bash", "-c", event["command"]], check=True)
    return found["complete"]


def main() -> int:
    with benchmark_folder("trial") as folder:
        since_s = [complete(folder / str(at))["since_start_s"] for at in range(ROUNDS)]
    rows = [limited(f"round {at}", one, "<=", 60.0, "{:.1f} s") for at, one in enumerate(since_s, 1)]
    return 0 if print_figures("From the command to the draft line, on a new stack", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
