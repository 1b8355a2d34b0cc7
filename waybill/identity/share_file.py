"""The file with the secret name of the group in which the gateways of a region share batches."""

from __future__ import annotations

import re
from pathlib import Path

from waybill.mqtt.broker_settings import read_password

__all__ = ["read_share"]

_SECRET = re.compile(r"[A-Za-z0-9_-]{22,64}")


def read_share(file: Path) -> str:
    """The name in a file. Raises OSError, and ValueError for a file that names none."""
    name = read_password(file).strip()
    if not _SECRET.fullmatch(name):
        raise ValueError("its first line is no name of 22 to 64 letters, digits, - or _")
    return name
