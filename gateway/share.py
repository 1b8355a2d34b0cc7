"""The name of the group in which the gateways of a region share what devices send."""

from __future__ import annotations

from gateway.config import Mqtt
from waybill.identity.broker_conf import read_share

__all__ = ["share_group"]

_OPEN = "gateway"


def share_group(settings: Mqtt) -> str:
    """The group that the settings name. Raises OSError, and ValueError for a file that names none.

    A broker lets everybody subscribe, and gives each message to one of a group, also to one that may not read it: who
    knows the name can make batches disappear, so it is a secret where devices have certificates.
    """
    return _OPEN if settings.share_file is None else read_share(settings.share_file)
