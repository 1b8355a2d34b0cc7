"""Fuzz parsers with coverage (atheris), one process for each; prints a line of what was run and found."""

import argparse
import hashlib
import importlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.bounds import Target
from tests.fuzz.targets import HOMES

FINDINGS = Path("build/fuzz")
"""Inputs that were findings are kept here, one file each."""
SLOW_S = 2.0
"""Counting branches makes the code many times slower: the exact bounds are held against the corpus afterwards."""
RSS_LIMIT_MB = 1024
OURS = ("cloud_jobs", "deploy", "edge_agent", "gateway", "geo", "simulator", "waybill")
"""Packages whose branches are counted."""
ROOT = Path(__file__).resolve().parents[2]


def target(name: str) -> Target:
    targets: dict[str, Target] = importlib.import_module(f"tests.fuzz.targets.{HOMES[name]}").TARGETS
    return targets[name]


def main() -> int:
    """The command; 0 if nothing was found."""
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("name", nargs="?", choices=sorted(HOMES), help="one parser; all without")
    asked.add_argument("--seconds", type=int, default=600)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.corpus:
        _fuzz(options.name, options.seconds, options.seed, options.corpus)
    failed = [name for name in ([options.name] if options.name else sorted(HOMES)) if not _run(name, options)]
    return bool(failed)


def _run(name: str, options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="waybill-fuzz-") as folder:
        corpus = Path(folder)
        for seed in target(name).seeds:
            if len(seed) <= target(name).fuzzed_bytes:
                (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
        seeds = len(list(corpus.iterdir()))
        log = _fuzz_in_child(name, options, corpus)
        runs = re.search(r"Done (\d+) runs", log) or re.search(r"stat::number_of_executed_units:\s+(\d+)", log)
        grown = sorted(corpus.iterdir())
        slow = _out_of_bounds(name, grown)
        crashed = "Done" not in log
    for line in slow:
        print(line)
    if crashed:
        print(log)
    verdict = "crashed" if crashed else f"{len(slow)} out of bounds" if slow else "no finding"
    count = runs[1] if runs else "unknown"
    print(
        f"{name}: {options.seconds} s, seed {options.seed}, {count} runs, corpus {seeds} to {len(grown)}, {verdict}",
        flush=True,
    )
    return not (crashed or slow)


def _fuzz_in_child(name: str, options: argparse.Namespace, corpus: Path) -> str:
    command = [sys.executable, "-m", "tests.fuzz", name, "--corpus", str(corpus)]
    command += ["--seconds", str(options.seconds), "--seed", str(options.seed)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=options.seconds + 300, check=False
    )
    return done.stdout[-3000:] + done.stderr[-3000:]


def _fuzz(name: str, seconds: int, seed: int, corpus: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=OURS):
        one = target(name)

    def judge(data: bytes) -> None:
        start = time.process_time()
        one.judge(data)
        taken = time.process_time() - start
        assert taken < SLOW_S, f"{len(data)} bytes took {taken:.1f} s"

    FINDINGS.mkdir(parents=True, exist_ok=True)
    limits = [
        f"-max_total_time={seconds}",
        f"-max_len={one.fuzzed_bytes}",
        f"-rss_limit_mb={RSS_LIMIT_MB}",
        "-timeout=20",
    ]
    place = f"-artifact_prefix={FINDINGS}/{name}-"
    atheris.Setup([sys.argv[0], f"-seed={seed}", place, "-print_final_stats=1", *limits, str(corpus)], judge)
    atheris.Fuzz()


def _out_of_bounds(name: str, corpus: list[Path]) -> list[str]:
    lines = []
    for path in corpus:
        data = path.read_bytes()
        try:
            target(name).check(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding and is printed
            FINDINGS.mkdir(parents=True, exist_ok=True)
            kept = FINDINGS / f"{name}-bounds-{path.name}"
            kept.write_bytes(data)
            lines.append(f"{name}: {kept}: {error!r}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
