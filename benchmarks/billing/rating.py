"""What it costs to rate a month, from rows of usage to charges, on one core.

Payers are rated in groups, as a task of the closing does, and without a search for cycles. Made-up usage and contracts
are not counted.
"""

from __future__ import annotations

import resource
import time
from argparse import Namespace
from collections.abc import Iterator

from benchmarks.billing.fleets import contracts, usage
from benchmarks.harness import Figure
from cloud_jobs.billing.rating import PriceBooks, cells_of_usage, rate
from cloud_jobs.billing.register.close import gc_disabled

GROUP = 500
FULL_DEVICES = 1_000_000
LIMIT_S = 300


def rows(asked: Namespace) -> Iterator[Figure]:
    """Seconds of one core for so many payers and devices (`asked`), and for a million devices."""
    spent = {"cells": 0.0, "charges": 0.0}
    charges = cells = 0
    books = PriceBooks()
    for first in range(0, asked.payers, GROUP):
        payers = min(GROUP, asked.payers - first)
        agreed = contracts(first, payers, asked.devices, daily_cap=asked.daily_cap)
        table = usage(first, payers, asked.devices, asked.rows)
        with gc_disabled():
            began = time.process_time()
            found = cells_of_usage(agreed, table)
            used = time.process_time()
            rated = [rate(contract, *of, books) for contract, of in zip(agreed, found, strict=True)]
            spent["cells"] += used - began
            spent["charges"] += time.process_time() - used
        cells += sum(len(of.cells) for of in found)
        charges += sum(len(one.charges) for one in rated)
    devices, all_rows = asked.payers * asked.devices, asked.payers * asked.devices * asked.rows
    whole = sum(spent.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = f"{asked.payers:,} payers, {devices:,} devices, {all_rows:,} rows: {cells:,} cells, {charges:,} charges"
    for name, seconds in (*spent.items(), ("together", whole)):
        took = f"{seconds:.1f} s, {seconds / all_rows * 1e6:.1f} s for a million rows"
        yield Figure(f"{name}, one core; {size}", "", took)
    full = whole * FULL_DEVICES / devices
    yield Figure(f"for {FULL_DEVICES:,} devices, by the ratio", f"< {LIMIT_S} s of one core", f"{full:.1f} s")
    yield Figure("largest resident memory", "", f"{peak:.0f} MiB")
