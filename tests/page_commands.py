"""Running a line of a page, as somebody types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_line(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell in a folder, with this project's commands; `variables` are added to the environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "200"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
