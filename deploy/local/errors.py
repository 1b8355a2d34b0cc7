"""What can go wrong with the local stack.

LocalStackError
├── ProgramMissing        a server's program is not installed
├── ServerFailed          a server ended, or did not become healthy in time
├── DiskFull              the disk of the stack's folder has no room for Pulsar
├── FolderDamaged         a file of the stack's folder cannot be read as what it should be
├── FolderNotOurs         the folder has content and was not made by Waybill
├── StackInUse            another process runs a stack in this folder
├── StackNotRunning       no stack runs in this folder
├── TopologyHasAddresses  the topology says where its clusters are, and a local stack starts its own
└── LinkControlError             a link's control did not answer, or refused
"""

from pathlib import Path


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


class DiskFull(LocalStackError):
    """The disk of the stack's folder has less room than Pulsar's bookies want; sizes in MB (10^6 bytes)."""

    def __init__(self, folder: Path, free_mb: int, needed_mb: int, total_mb: int) -> None:
        self.folder, self.free_mb, self.needed_mb = folder, free_mb, needed_mb
        super().__init__(
            f"{folder}: its disk has {free_mb:,} MB free of {total_mb:,}, and Pulsar stops writing with {needed_mb:,}"
            " MB or less (one part in a hundred, or 100 MB): make room, or choose another folder with --folder"
        )


class FolderDamaged(LocalStackError):
    """A file of the stack's folder is not what the stack writes; says which, and the way out."""

    def __init__(self, file: Path, reason: str, remedy: str) -> None:
        self.file, self.reason, self.remedy = file, reason, remedy
        super().__init__(f"{file} {reason}; {remedy}")


class FolderNotOurs(LocalStackError):
    """The folder has content that Waybill did not put there: nothing is written or deleted in it."""

    def __init__(self, folder: Path, reason: str = "has content and was not made by waybill") -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"{folder} {reason}: nothing was written or deleted; "
            "name a folder that is empty or does not exist, or delete this one yourself"
        )


class StackInUse(LocalStackError):
    """Another process runs a stack in this folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"a stack already runs in {folder}; stop it with `waybill down --folder {folder}`")


class StackNotRunning(LocalStackError):
    """No stack runs in this folder; `failure`: what ended the last one, empty when nothing did or nobody knows."""

    def __init__(self, folder: Path, failure: str = "") -> None:
        self.folder, self.failure = folder, failure
        last = f"\nthe last one failed: {failure}" if failure else ""
        super().__init__(f"no stack runs in {folder}; start one with `waybill up --folder {folder}`{last}")


class TopologyHasAddresses(LocalStackError):
    """The topology is one of clusters that run elsewhere: a local stack chooses the addresses of its own."""

    def __init__(self, file: Path, clusters: list[str]) -> None:
        self.file, self.clusters = file, clusters
        super().__init__(
            f"{file} says where {', '.join(clusters)} run; a local stack starts clusters of its own: "
            "take the tables [clusters.*.address] out of a copy of it"
        )


class LinkControlError(LocalStackError):
    """The control of the links did not answer, or refused a command."""

    def __init__(self, link: str, reason: str) -> None:
        self.link, self.reason = link, reason
        super().__init__(f"link {link}: {reason}")
