"""`python -m tests.deploy.tiny_benchmarks NAME`: a benchmark with next to nothing to do."""

import sys
from importlib import import_module
from typing import Any, Final, NamedTuple


class Tiny(NamedTuple):
    """A benchmark's module, its words, and the numbers of the module that are smaller."""

    module: str
    words: str = ""
    numbers: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it


TINY: Final = {
    "alerts-evaluation": Tiny(
        "benchmarks.alerts.evaluation", "", {"DEVICES": 500, "FENCES": 500, "SECONDS": 4, "MESSAGE_SECONDS": 2}
    ),
    "billing": Tiny("benchmarks.billing.__main__", "rating close --payers 5 --devices 2 --rows 3"),
    "centre": Tiny("benchmarks.centre.__main__", "age --commits 20 --buffers 200 --records 10000"),
    "console": Tiny(
        "benchmarks.console",
        "",
        {"LIVE_DEVICES": 200, "LIVE_S": 4.0, "VEHICLES": 20, "REPLAY_S": 3.0, "TABS": 3, "MEMORY_S": 3.0},
    ),
    "edge": Tiny(
        "benchmarks.edge.__main__",
        "intake mapped nmea drain drain-slowly",
        {"MESSAGES": 2_000, "BACKLOG": 20_000, "SLOW_BACKLOG": 5_000, "MAX_ROUNDS": 1},
    ),
    "gateway-speed": Tiny(
        "benchmarks.gateway.speed",
        "",
        {"DEVICES": 20, "WARM_UP_S": 1.0, "HALF_WARM_UP_S": 0.5, "MEASURED_S": 1.0, "PERF_S": 3, "TARGET_RATE": 200.0},
    ),
    "replication": Tiny("benchmarks.replication", "", {"WARM_UP_S": 2.0, "MEASURED_S": 2.0, "SETTLE_S": 2.0}),
    "source": Tiny("benchmarks.source", "", {"MESSAGES": 6_000, "ROUNDS": 1, "LIGHT_BATCHES": 3}),
    "source-growth": Tiny("benchmarks.source", "growth", {"BATCHES": 10, "ROTATIONS": 2}),
    "spatial": Tiny("benchmarks.spatial.__main__", "1k standstill"),
}


def main(name: str) -> None:
    tiny = TINY[name]
    module = import_module(tiny.module)
    for number, value in tiny.numbers.items():
        assert hasattr(module, number), f"{tiny.module} has no {number}"
        setattr(module, number, value)
    sys.argv = [tiny.module, *tiny.words.split()]
    module.main()


if __name__ == "__main__":
    main(sys.argv[1])
