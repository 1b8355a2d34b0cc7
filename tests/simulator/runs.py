"""A run without a broker: the files of a scenario and its journal, and the truth about it."""

from pathlib import Path

from simulator import Scenario, drive, write_folder, write_journal
from simulator.drive import Track
from simulator.truth import Truth

RECORDING = Path(__file__).parents[2].parent / "shared" / "data" / "liverpool_bus_route14.csv"


def run_in(folder: Path, scenario: Scenario, track: Track | None = None) -> Truth:
    write_folder(folder, scenario, track)
    with (folder / "made.jsonl").open("w") as lines:
        write_journal(drive(scenario, track), lines)
    return Truth.from_folder(folder)
