"""The settings of a connection to an MQTT broker, shared by agent and gateway."""

from __future__ import annotations

import io
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from waybill.daemon.tls import TlsSettings, unusable_tls_files
from waybill.settings import Settings, file_fault, open_file

Host = Annotated[str, StringConstraints(pattern=r"^[^\s/:@]{1,253}$|^[0-9a-fA-F:.]{2,45}$")]
Port = Annotated[int, Field(ge=1, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
MAX_PASSWORD_CHARACTERS = 65_535


class BrokerSettings(Settings):
    """An MQTT 5 broker to connect to."""

    host: Host = "127.0.0.1"
    """Name or address of the broker."""
    port: Port = 1883
    """Its TCP port."""
    username: str | None = None
    """User name, where the broker asks for one."""
    password_file: Path | None = None
    """File whose first line is the password."""
    tls: TlsSettings | None = None
    """Certificates; without them the connection is not encrypted."""
    keepalive_s: int = Field(default=30, ge=5, le=3600)
    """A silent connection is probed after this time and given up after twice of it."""
    connect_timeout_s: Seconds = 5.0
    """How long one attempt to connect may take."""
    backoff_first_s: Seconds = 0.5
    """The wait after the first failed attempt; it doubles, with jitter, up to `backoff_max_s`."""
    backoff_max_s: Seconds = 60.0
    """The longest wait between two attempts."""

    @model_validator(mode="after")
    def _has_whole_credentials(self) -> Self:
        if self.password_file is not None and self.username is None:
            raise ValueError("username and password_file belong together: set both or neither")
        return self


def read_password(file: Path) -> str:
    """The first line of a password file. Raises OSError, ValueError."""
    with io.TextIOWrapper(open_file(file), encoding="utf-8") as lines:
        return lines.readline(MAX_PASSWORD_CHARACTERS).partition("\n")[0]


def unusable_files(table: str, broker: BrokerSettings) -> Iterator[str]:
    """A line for each file that cannot be used; `table` names the settings."""
    if broker.password_file is not None:
        try:
            if not read_password(broker.password_file):
                yield f"{table}.password_file: its first line is empty"
        except (OSError, ValueError) as error:
            yield f"{table}.password_file: {broker.password_file} cannot be read: {file_fault(error)}"
    yield from unusable_tls_files(f"{table}.tls", broker.tls)


def is_this_machine(host: str) -> bool:
    """Whether it is a loopback address or localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
