"""`edge-agent`. What a reload may interrupt is decided before anything else is imported."""

import signal
import sys


def app() -> None:
    """The command line. A SIGHUP that comes while `run` is still being loaded waits until the agent can reload."""
    if sys.argv[1:2] == ["run"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from edge_agent.cli import app as commands

    commands(prog_name="edge-agent")


if __name__ == "__main__":
    app()
