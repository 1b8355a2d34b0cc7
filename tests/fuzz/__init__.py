"""Every parser of bytes from outside, fuzzed: with Hypothesis in the tests, with coverage for minutes in the night.

A parser is a row of `TARGETS` in a module of `tests/fuzz/targets/`, and named in that package's `HOMES`.
`python -m tests.fuzz NAME --seconds 600 --seed 1` fuzzes one, without a name all, one after the other.
"""
