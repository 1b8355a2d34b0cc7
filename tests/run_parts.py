"""The parts of `make test`: those before `then` beside each other, those after it one by one when these have ended.

    python tests/run_parts.py COMMAND... [then COMMAND...]

A command is one argument. The output of the first one is shown as it comes, that of the others beside it when they end.
Each part runs to its end, whatever fails. SIGINT, SIGTERM and SIGHUP interrupt every part that runs, as Ctrl-C does:
it stops its servers, what it has printed so far is shown, and no further part begins.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from types import FrameType
from typing import IO

GRACE_S = 90
"""How long an interrupted part may take to stop its servers before it is killed, and they with it."""
EXIT_SIGNALLED = 128


class Parts:
    """The commands that run, and the signal that ended them, if one came."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self.signal = 0

    def handle_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._interrupt)
        signal.signal(signal.SIGALRM, self._kill)

    def start(self, command: str, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Start a part; without `output` it prints where we print."""
        part = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *shlex.split(command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            # In a group of its own it gets Ctrl-C only from here: once, for a second one would break off its clean-up.
            process_group=0,
        )
        self._started.append(part)
        if self.signal:  # it came while this one was being started
            part.send_signal(signal.SIGINT)
        return part

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        for part in self._started:
            part.send_signal(signal.SIGINT)
        signal.alarm(GRACE_S)

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        for part in self._started:
            if part.returncode is None:
                os.killpg(part.pid, signal.SIGKILL)


def run(beside: Sequence[str], then: Sequence[str]) -> int:
    """Run all parts. The exit status: 0 all passed, 1 one did not, 128 and the signal's number after a signal."""
    parts = Parts()
    parts.handle_signals()
    failed = False
    with ExitStack() as files:
        # Files without a name: however this process ends, they are gone with it.
        outputs = [None, *(files.enter_context(TemporaryFile()) for _ in beside[1:])]
        started = [parts.start(command, output) for command, output in zip(beside, outputs, strict=False)]
        for part, output in zip(started, outputs, strict=False):
            failed |= part.wait() != 0
            if output is not None:
                output.seek(0)
                sys.stdout.buffer.write(b"\n" + output.read())
                sys.stdout.flush()
    for command in then:
        if not parts.signal:
            failed |= parts.start(command).wait() != 0
    return EXIT_SIGNALLED + parts.signal if parts.signal else int(failed)


def main(arguments: Sequence[str]) -> int:
    """Split the commands at `then`, and run them."""
    first = arguments.index("then") if "then" in arguments else len(arguments)
    return run(arguments[:first], arguments[first + 1 :])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
