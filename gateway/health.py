"""What *healthy* claims, and the reason when it cannot be claimed."""

from __future__ import annotations

from collections import deque

from waybill.record import DeviceChannel, device_filter

STALLED_AFTER_S = 60.0
"""A batch that waits so long for Pulsar is not good use of the window."""
ACK_WINDOW_S = 60.0
MAX_REFUSED_SHARE = 0.1
"""Of the publications of the last minute, the broker may refuse so many: a single device that it bars is no fault."""
_BUCKETS = 6
_TO_DEVICES = " and ".join(device_filter(channel) for channel in (DeviceChannel.ACK, DeviceChannel.CONFIG))


class PublicationResults:
    """What the broker answered to publications in the last `ACK_WINDOW_S`: taken or refused, and the newest refusal."""

    def __init__(self) -> None:
        self.refusal = ""
        self._buckets: deque[tuple[int, int, int]] = deque(maxlen=_BUCKETS + 1)

    def add(self, refusal: str, now_s: float) -> None:
        """The broker took one, or refused it with this reason."""
        number = int(now_s / ACK_WINDOW_S * _BUCKETS)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, 0, 0))
        _, taken, refused = self._buckets.pop()
        self._buckets.append((number, taken + (not refusal), refused + bool(refusal)))
        self.refusal = refusal or self.refusal

    def problem(self, now_s: float) -> str:
        """Why devices may not hear; empty when the broker took nearly all."""
        oldest = int(now_s / ACK_WINDOW_S * _BUCKETS) - _BUCKETS
        recent = [bucket for bucket in self._buckets if bucket[0] >= oldest]
        taken, refused = sum(bucket[1] for bucket in recent), sum(bucket[2] for bucket in recent)
        if refused <= MAX_REFUSED_SHARE * (taken + refused):
            return ""
        return (
            f"the MQTT broker refused {refused} of the last {taken + refused} messages to devices ({self.refusal}): "
            f"allow this gateway to publish {_TO_DEVICES}"
        )


def stall_problem(oldest_in_flight_s: float) -> str:
    """Why a connected Pulsar is still not good; empty when batches move."""
    if oldest_in_flight_s < STALLED_AFTER_S:
        return ""
    return f"a batch waits for Pulsar's receipt since {oldest_in_flight_s:.0f} s"
