"""Every registered parser reads or refuses seeds, mutations and arbitrary bytes, in bounded time and memory."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fuzz.__main__ import ROOT, target
from tests.fuzz.targets import HOMES


@st.composite
def mutations(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed of which pieces were overwritten, repeated, moved or cut out."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        end = start + draw(st.integers(0, 8))
        piece = draw(st.binary(max_size=9) | st.just(bytes(data[start:end])) | st.just(bytes(data[start:end]) * 40))
        data[start:end] = piece
    return bytes(data)


@pytest.mark.parametrize("name", sorted(HOMES))
def test_the_seeds_are_judged_within_bounds(name: str) -> None:
    for seed in target(name).seeds:
        target(name).check(seed)
        target(name).judge(seed)


@pytest.mark.parametrize("name", sorted(HOMES))
def test_mutated_seeds_and_arbitrary_bytes_are_read_or_refused(name: str) -> None:

    @settings(max_examples=examples(150), deadline=None)
    @given(mutations(target(name).seeds) | st.binary(max_size=200))
    def law(data: bytes) -> None:
        target(name).judge(data)

    law()


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(HOMES))
def test_minutes_of_fuzzing_with_coverage_find_nothing(name: str) -> None:
    seconds = os.environ.get("FUZZ_SECONDS", "600")
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        name,
        "--seconds",
        seconds,
        "--seed",
        os.environ.get("FUZZ_SEED", "1"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=int(seconds) + 600, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
