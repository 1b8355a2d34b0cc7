"""How many examples a law is tried with: all on a developer's machine, an eighth in continuous integration.

The whole of `make test` has to end within half an hour of two cores there; the nightly forms try many more.
"""

import os

SHARE = 8 if os.environ.get("CI") else 1


def examples(number: int) -> int:
    return max(1, number // SHARE)
