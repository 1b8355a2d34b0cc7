"""`make bench-billing`: billing's figures beside what is asked."""

from pathlib import Path

from benchmarks.billing import costs
from benchmarks.billing.fleets import FleetSize, Past
from benchmarks.harness import benchmark_folder, parser_of, print_figures, quiet

PARTS = ("rating", "close", "visits", "large-account", "table", "show", "explain")


def main() -> None:
    parser = parser_of(__doc__, PARTS)
    parser.add_argument("--payers", type=int, default=10_000, help="of `rating` and `close`")
    parser.add_argument("--full", action="store_true", help="`close` with the million devices that are asked for")
    parser.add_argument("--devices", type=int, default=10, help="of each payer")
    parser.add_argument("--rows", type=int, default=30, help="of usage, of each device")
    parser.add_argument("--scattered", action="store_true", help="devices that are neighbours have other payers")
    parser.add_argument("--daily-cap", action="store_true", help="`rating` with prices that look at each day by itself")
    parser.add_argument("--large", type=int, default=10_000, help="devices of the one payer of `large-account`")
    parser.add_argument("--segments", type=int, default=50_000, help="of `table`, each with five amounts")
    parser.add_argument("--register", type=int, default=100_000, help="payers in the register of `show`")
    parser.add_argument("--issued-months", type=int, default=12, help="months in the register of `show`")
    parser.add_argument("--records", type=int, default=50_000_000, help="in the lake of `explain`")
    parser.add_argument("--commits", type=int, default=10_000, help="small ones of the ingest, of `explain`")
    parser.add_argument("--fences", type=int, default=100_000, help="of `explain`")
    parser.add_argument("--keep", type=Path, help="where the lakes of `explain` are kept, and are taken from again")
    asked = parser.parse_args()
    quiet()
    fleet = FleetSize(asked.payers, asked.devices, asked.rows, asked.scattered)
    with benchmark_folder("billing") as folder:
        if "rating" in asked.parts:
            print_figures("Rating a month", costs.rating(asked))
        if "close" in asked.parts:
            figures = costs.month(folder / "close", costs.FULL if asked.full else fleet)
            print_figures("A month closed and issued, Spark on two cores", figures)
        if "visits" in asked.parts:
            print_figures("Visits on top of usage", costs.visits(folder / "visits", fleet))
        if "large-account" in asked.parts:
            large = FleetSize(payers=1, devices=asked.large, rows=asked.rows)
            print_figures("One payer with many devices", costs.large_account(folder / "large", large))
        if "table" in asked.parts:
            print_figures("A toll with an amount for each section and class", costs.price_table(asked.segments, 5))
        if "show" in asked.parts:
            print_figures("One invoice of many", costs.show(folder / "show", asked.register, asked.issued_months))
        if "explain" in asked.parts:
            past = Past.of(asked.records, asked.commits, asked.fences)
            print_figures("One line taken apart", costs.explain(asked.keep or folder, past))


if __name__ == "__main__":
    main()
