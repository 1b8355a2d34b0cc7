"""A run without a broker: the files of a scenario and its journal, and the truth about it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from simulator import Scenario, VehicleMessage, drive, write_folder
from simulator.messages import journal_line
from simulator.truth import Truth


def write_journal(messages: Iterable[VehicleMessage], out: TextIO) -> int:
    """The journal of messages that nobody publishes; how many there were."""
    lines = [journal_line(message) for message in messages]
    out.writelines(lines)
    return len(lines)


def run_in(folder: Path, scenario: Scenario) -> Truth:
    write_folder(folder, scenario)
    with (folder / "made.jsonl").open("w") as lines:
        write_journal(drive(scenario), lines)
    return Truth.from_folder(folder)
