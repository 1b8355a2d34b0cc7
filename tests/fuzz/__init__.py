"""Every parser of bytes from outside, fuzzed: with Hypothesis in the tests, with coverage for minutes in the night.

A parser is registered by a module in `tests/fuzz/targets/`, named for it, which has

- `seeds()`: valid and nearly valid inputs to start from;
- `judge(data)`: parses the bytes and returns, whether they were read or refused with the typed error; any other
  exception, and any law that does not hold, is a finding;
- `bounded(data)`, if `judge` does more than to parse: what is held against the bounds of time and memory;
- `MAX_SECONDS`, if it may take longer than other parsers: a file that a person names is read once, and not in a loop;
- `FUZZED_BYTES`, where short inputs find more in the time: longer ones are then among the seeds, which tests judge.

`python -m tests.fuzz NAME --seconds 600 --seed 1` fuzzes one, without a name all, one after the other.
"""
