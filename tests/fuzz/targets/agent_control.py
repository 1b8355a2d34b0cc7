"""What a gateway sends to a device: acknowledgements, and what else comes on its topics."""

from __future__ import annotations

from collections.abc import Iterable

from edge_agent.drain.region import Pause
from edge_agent.drain.sent_batches import SentSeqs
from edge_agent.uplink.mqtt import control_events
from waybill.record import Ack, IntervalSet, encode_ack

SENT = IntervalSet([(1, 1000), (2000, 2010)])


def seeds() -> Iterable[bytes]:
    """True, refusing, pausing and forged acknowledgements."""
    yield encode_ack(Ack(7, IntervalSet([(1, 10**12)]), 3600.0))
    yield encode_ack(Ack(7, IntervalSet([(5, 9), (990, 2005)])))
    yield encode_ack(Ack(7, IntervalSet([(1, 9)]), 1.0, "full"))
    yield b"\x81\xa5epoch\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"


def judge(data: bytes) -> None:
    """Nothing raises, nothing is taken that was not sent, and a pause ends."""
    sent, pause = SentSeqs(), Pause(600.0)
    sent.add("eu", 7, SENT)
    for kind in ("ack", "config", "other"):
        for event in control_events(kind, data):
            if isinstance(event, Ack):
                assert SENT.covers(sent.take_acked("eu", event.epoch, event.seqs))
                pause.request(0.0, event.pause_s)
                assert pause.left_s(0.0) <= 600.0
