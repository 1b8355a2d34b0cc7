"""Run as a script: becomes the given command, and dies with the process that started it.

    python launcher.py PARENT_PID COMMAND [ARGUMENT...]

The kernel sends SIGKILL to this process when the *thread* that forked it ends (Linux, PR_SET_PDEATHSIG), and keeps that
promise across exec. So not even SIGKILL of the parent leaves a server behind. Imports the standard library only.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then exec the command."""
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # the parent died between the fork and the prctl: no signal would come
        raise SystemExit("launcher: the parent is gone")
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
