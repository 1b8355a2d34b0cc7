"""What can go wrong with the local stack.

LocalStackError
├── ProgramMissing    a server's program is not installed
├── ServerFailed      a server ended, or did not become healthy in time
├── StackInUse        another process runs a stack in this folder
├── StackNotRunning   no stack runs in this folder
└── LinkError         a link's control did not answer, or refused
"""

from pathlib import Path

__all__ = ["LinkError", "LocalStackError", "ProgramMissing", "ServerFailed", "StackInUse", "StackNotRunning"]


class LocalStackError(Exception):
    """The local stack cannot do what was asked."""


class ProgramMissing(LocalStackError):
    """A server's program was not found; says how to get it."""

    def __init__(self, program: str, remedy: str) -> None:
        self.program, self.remedy = program, remedy
        super().__init__(f"{program} was not found; {remedy}")


class ServerFailed(LocalStackError):
    """A server ended or never became healthy; names it and carries its last log lines."""

    def __init__(self, server: str, reason: str, log: Path, last_lines: list[str]) -> None:
        self.server, self.reason, self.log, self.last_lines = server, reason, log, last_lines
        quoted = "\n".join(f"    {line}" for line in last_lines) or "    (the log is empty)"
        super().__init__(f"server {server} {reason}\n  last lines of {log}:\n{quoted}")


class StackInUse(LocalStackError):
    """Another process runs a stack in this folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"a stack already runs in {folder}; stop it with `waybill down --folder {folder}`")


class StackNotRunning(LocalStackError):
    """No stack runs in this folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"no stack runs in {folder}; start one with `waybill up --folder {folder}`")


class LinkError(LocalStackError):
    """The control of the links did not answer, or refused a command."""

    def __init__(self, link: str, reason: str) -> None:
        self.link, self.reason = link, reason
        super().__init__(f"link {link}: {reason}")
