"""The modules on the ways through the product, counted while they run: `python -m tests.structure.ways`.

A module is on a way if one of its functions runs there. The way of an acknowledgement is followed in `ack_path`; that
of a bill begins with the commit of an ingest and ends with an issued invoice; that of a revocation is followed in
`revocation_path`.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.structure.sources import PACKAGES


def modules_that_run(action: Callable[[], object]) -> set[str]:
    """The modules of the product of which a function runs meanwhile, in any thread."""
    found: set[str] = set()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & 2:
            found.add(frame.f_globals.get("__name__", ""))

    threading.setprofile(on_event)
    sys.setprofile(on_event)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {name for name in found if name.partition(".")[0] in PACKAGES}


def fix_to_invoice_line(folder: Path) -> set[str]:
    """From the records of a commit to an issued invoice: metering, closing, issuing; the source is not in it."""
    from tests.cloud_jobs.billing.register.metered_lake import JANUARY, make_metered_lake  # noqa: PLC0415 - Spark

    def way() -> None:
        billed = make_metered_lake(folder / "lake")
        billed.close("one", days=JANUARY)
        billed.issue("clerk", JANUARY)

    return modules_that_run(way)


def acknowledgement(folder: Path) -> set[str]:
    from tests.structure.ack_path import modules_of_two_acknowledgements  # noqa: PLC0415 - brokers of both sides

    return set.union(*modules_of_two_acknowledgements(folder))


def revoke_to_session_end(folder: Path) -> set[str]:
    from tests.structure.revocation_path import modules_of_a_revocation  # noqa: PLC0415 - both programs

    return modules_of_a_revocation(folder)


WAYS = {
    "acknowledgement": acknowledgement,
    "fix to invoice line": fix_to_invoice_line,
    "revoke to session end": revoke_to_session_end,
}


def main() -> None:
    found = {}
    for name, way in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = sorted(way(Path(folder)))
    sys.stdout.write(json.dumps(found if "--modules" in sys.argv else {name: len(one) for name, one in found.items()}))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
