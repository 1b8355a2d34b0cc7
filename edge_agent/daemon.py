"""The process: signals, logs, and the agent between them.

`edge-agent run` replaces itself with `python -m edge_agent.daemon`, which imports no command line.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
from pathlib import Path

import structlog

from edge_agent.agent import Agent
from edge_agent.config import AgentSettings
from edge_agent.errors import AgentError
from settings import SettingsError, load

WAKE_EVERY_S = 5.0
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_EXIT_CONFIG = 78
_EXIT_FAILED = 1


def main(arguments: list[str]) -> int:
    """Runs the agent with the settings in the file named first; its exit code."""
    try:
        settings = load(AgentSettings, Path(arguments[0]))
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_CONFIG
    configure_logs(settings)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return _serve(Agent(settings))
    except AgentError as error:
        structlog.get_logger("edge_agent").error("cannot start", error=str(error))
        return _EXIT_FAILED


def configure_logs(settings: AgentSettings) -> None:
    """One JSON object a line on standard error."""
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _serve(agent: Agent) -> int:
    agent.start()
    gc.collect()
    gc.freeze()
    while agent.is_running:
        received = signal.sigtimedwait(_SIGNALS, WAKE_EVERY_S)
        if received is not None and received.si_signo != signal.SIGHUP:
            agent.stop()
            return 0
    agent.stop()
    return _EXIT_FAILED


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
