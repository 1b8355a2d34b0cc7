"""`make bench-billing`: what it costs to rate a month, from rows of usage to charges, on one core.

Payers are rated in groups, as a task of the closing does. Made-up usage and contracts are not counted.
"""

from __future__ import annotations

import argparse
import resource
import time

from benchmarks.billing.fleets import contracts, usage
from cloud_jobs.billing.rating import PriceBooks, cells_of_usage, rate

GROUP = 500
FULL_DEVICES = 1_000_000
LIMIT_S = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payers", type=int, default=10_000)
    parser.add_argument("--devices", type=int, default=10, help="of each payer")
    parser.add_argument("--rows", type=int, default=10, help="of usage, of each device")
    parser.add_argument("--daily-cap", action="store_true", help="prices that look at each day by itself")
    asked = parser.parse_args()
    spent = {"cells": 0.0, "charges": 0.0}
    charges = cells = 0
    books = PriceBooks()
    for first in range(0, asked.payers, GROUP):
        payers = min(GROUP, asked.payers - first)
        agreed = contracts(first, payers, asked.devices, daily_cap=asked.daily_cap)
        table = usage(first, payers, asked.devices, asked.rows)
        began = time.process_time()
        found = cells_of_usage(agreed, table)
        used = time.process_time()
        rated = [rate(contract, *of, books) for contract, of in zip(agreed, found, strict=True)]
        spent["cells"] += used - began
        spent["charges"] += time.process_time() - used
        cells += sum(len(of.cells) for of in found)
        charges += sum(len(one.charges) for one in rated)
    devices, rows = asked.payers * asked.devices, asked.payers * asked.devices * asked.rows
    whole = sum(spent.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{asked.payers:,} payers, {devices:,} devices, {rows:,} rows of usage: {cells:,} cells, {charges:,} charges")
    for name, seconds in spent.items():
        print(f"  {name:<22} {seconds:8.1f} s of one core   {seconds / rows * 1e6:8.1f} s for a million rows")
    print(f"  together               {whole:8.1f} s               {whole / rows * 1e6:8.1f} s for a million rows")
    full = whole * FULL_DEVICES / devices
    met = "met" if full < LIMIT_S else "NOT MET"
    print(f"  for {FULL_DEVICES:,} devices  {full:8.1f} s   asked < {LIMIT_S} s   {met}")
    print(f"  largest resident memory {peak:7.0f} MiB")


if __name__ == "__main__":
    main()
