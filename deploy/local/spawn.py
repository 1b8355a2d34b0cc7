"""Start a process that cannot outlive this one."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.local import launcher

__all__ = ["spawn"]

# The kernel ties a child to the *thread* that forked it. All children are forked by this one thread, which lives as
# long as the process, so callers may use short-lived threads of their own.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")


def spawn(command: Sequence[str], *, log: Path, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, its output appended to `log`; it dies with this process.

    `env` is added to this process's environment.
    """

    def fork() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                # Without site and the user's environment the launcher starts quickly: until its prctl the child is not
                # tied to us.
                [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **env},
                start_new_session=True,
            )

    return _forker.submit(fork).result(timeout=30)
