"""Sessions on a page, `$ waybill ...` and what it prints below: run again, and held against the page.

Dots on a page (`…`) stand for what differs from run to run, and a row of them for rows that the page leaves out.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from waybill.commands import SUBCOMMANDS, command_line


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


SESSION = re.compile(r"^```\n([$#] .*?)^```$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^([$#] .*)\n((?:[^$#].*\n)*)", re.MULTILINE)
ASKS_STATUS = "; echo $?"


def steps_of(page: str) -> list[tuple[str, str]]:
    """Each line of a page's sessions that is a command (`$ `) or says what happens (`# `), and what stands below it."""
    return [step for session in SESSION.findall(page) for step in STEP.findall(session)]


def printed(line: str) -> str:
    """What a `waybill` command of a page prints, with its exit status if the page asks for it."""
    command, asks, _ = line.removeprefix("$ ").partition(ASKS_STATUS)
    program, *words = shlex.split(command)
    assert program == "waybill", line
    result = CliRunner().invoke(command_line(SUBCOMMANDS, words, "Waybill."), words)
    lines = [*result.output.splitlines(), *([str(result.exit_code)] if asks else [])]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def assert_shown(line: str, expected: str) -> None:
    rows = (".*".join(re.escape(part) for part in part.split("…")) for part in expected.split("│ …\n"))
    out = printed(line)
    assert re.fullmatch(r"(?:[│├┏┃┡└].*\n)+".join(rows), out), f"{line}\n{out}"
