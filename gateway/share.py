"""The name of the group in which the gateways of a region share what devices send."""

from __future__ import annotations

import re

from gateway.config import Mqtt
from runtime.broker_settings import read_password

__all__ = ["share_group"]

_OPEN = "gateway"
_SECRET = re.compile(r"[A-Za-z0-9_-]{22,64}")


def share_group(settings: Mqtt) -> str:
    """The group that the settings name. Raises OSError, and ValueError for a file that names none.

    A broker lets everybody subscribe, and gives each message to one of a group, also to one that may not read it: who
    knows the name can make batches disappear, so it is a secret where devices have certificates.
    """
    if settings.share_file is None:
        return _OPEN
    name = read_password(settings.share_file).strip()
    if not _SECRET.fullmatch(name):
        raise ValueError("its first line is no name of 22 to 64 letters, digits, - or _")
    return name
