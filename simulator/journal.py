"""The journal: one JSON line for each record that the fleet made, in the order of its making."""

import json
from collections.abc import Iterable
from typing import TextIO

from simulator.messages import VehicleMessage, journal_entry


def journal_line(message: VehicleMessage) -> str:
    """The line of a message: device, kind, time and content."""
    return json.dumps(journal_entry(message), separators=(",", ":")) + "\n"


def write_journal(messages: Iterable[VehicleMessage], out: TextIO) -> int:
    """Write the journal of messages that nobody publishes; returns how many there were."""
    count = 0
    for count, message in enumerate(messages, start=1):  # noqa: B007 - the count is what is returned
        out.write(journal_line(message))
    return count
