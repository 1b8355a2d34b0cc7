"""Checks beyond the settings file itself: files that cannot be used.

The agent also runs with these problems, and stores what it cannot deliver.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificates import certificate_folder
from edge_agent.errors import AgentError
from waybill.mqtt.broker_settings import read_password, unusable_files
from waybill.settings import file_fault

SERVICE_USER: Final = "edge-agent"
"""User and group of the service that the Debian package installs."""


def check_user(settings: AgentSettings, service: str = SERVICE_USER) -> None:
    """Raises AgentError if this is root and the buffer is the service's, which could not read the files of root."""
    folder = settings.buffer.path
    if os.geteuid() != 0 or not folder.is_dir():
        return
    try:
        owner = pwd.getpwuid(folder.stat().st_uid).pw_name
    except KeyError:
        return
    if owner == service:
        raise AgentError(
            f"{folder} belongs to the user {owner}, who could not read files that root writes there: run this command "
            f"with `runuser -u {owner} --` before it"
        )


def problems(settings: AgentSettings) -> list[str]:
    """One line for each file that is missing or cannot be used."""
    brokers = {"intake": settings.intake, **{f"uplinks.{at}": one for at, one in enumerate(settings.uplinks)}}
    lines = [problem for table, broker in brokers.items() for problem in unusable_files(table, broker)]
    if settings.enrolment is not None:
        lines += unusable_enrolment(settings)
    return lines


def unusable_enrolment(settings: AgentSettings, table: str = "enrolment") -> list[str]:
    """One line for each unusable file of the enrolment settings. `table`: how the settings table is called.

    The claim is not checked once the device has a certificate.
    """
    enrolment, folder = settings.enrolment, certificate_folder(settings)
    if enrolment is None or folder is None:
        return []
    lines = _unreadable(f"{table}.ca", enrolment.ca, Path.read_bytes)
    if folder.newest() is not None:
        return lines
    claim = (
        ("token_file", enrolment.token_file, _token),
        ("certificate", enrolment.certificate, Path.read_bytes),
        ("key", enrolment.key, Path.read_bytes),
    )
    for name, file, read in claim:
        if file is not None:
            lines += _unreadable(f"{table}.{name}", file, read)
    return lines


def _token(file: Path) -> str:
    if not (token := read_password(file)):
        raise ValueError("its first line is empty")
    return token


def _unreadable(name: str, file: Path, read: Callable[[Path], object]) -> list[str]:
    try:
        read(file)
    except OSError as error:
        return [f"{name}: {file} cannot be read: {file_fault(error)}"]
    except ValueError as error:
        return [f"{name}: {file}: {error}"]
    return []
