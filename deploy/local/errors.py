"""Errors of the local stack."""

from pathlib import Path


class LocalStackError(Exception):
    """The local stack cannot do what was asked."""


class ProgramMissing(LocalStackError):
    def __init__(self, program: str, remedy: str) -> None:
        super().__init__(f"{program} was not found; {remedy}")


class ServerFailed(LocalStackError):
    """A server ended or never became healthy; the message has its last log lines."""

    def __init__(self, server: str, reason: str, log: Path, last_lines: list[str]) -> None:
        self.server, self.reason, self.log, self.last_lines = server, reason, log, last_lines
        quoted = "\n".join(f"    {line}" for line in last_lines) or "    (the log is empty)"
        super().__init__(f"server {server} {reason}\n  last lines of {log}:\n{quoted}")


class FolderNotOurs(LocalStackError):
    """The folder has content that Waybill did not put there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} has content and was not made by waybill: nothing was written or deleted; "
            "name a folder that is empty or does not exist, or delete this one yourself"
        )


class StackInUse(LocalStackError):
    """Another process runs a stack in this folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"a stack already runs in {folder}; stop it with `waybill down --folder {folder}`")


class StackNotRunning(LocalStackError):
    def __init__(self, folder: Path) -> None:
        super().__init__(f"no stack runs in {folder}; start one with `waybill up --folder {folder}`")


class LinkControlError(LocalStackError):
    """The control of the links did not answer, or refused a command."""

    def __init__(self, link: str, reason: str) -> None:
        super().__init__(f"link {link}: {reason}")
