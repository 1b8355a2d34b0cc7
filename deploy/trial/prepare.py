"""What `make setup` does once, so that `waybill try` starts sooner: `python -m deploy.trial.prepare`.

It writes the archives of classes that the Java virtual machines of Pulsar and Spark read, 0.25 GB in the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy.local import LocalStack, LocalStackError
from deploy.local.stack import DEFAULT_TOPOLOGY
from deploy.trial.centre import write_spark_classes
from deploy.trial.files import one_region

_REGION: Final = "eu"
_STOP_S: Final = 120.0
"""A virtual machine writes its archive when it ends."""


def write_pulsar_classes() -> None:
    """The first server that stops in order writes the archive. Raises LocalStackError."""
    with TemporaryDirectory() as name:
        (topology := Path(name) / "topology.toml").write_text(one_region(DEFAULT_TOPOLOGY.read_text(), _REGION))
        with LocalStack(Path(name) / "stack", topology=topology) as stack:
            for cluster in stack.pulsar.values():
                cluster.stop(_STOP_S)


def main() -> int:
    try:
        write_pulsar_classes()
        write_spark_classes()
    except (LocalStackError, OSError) as error:
        sys.stderr.write(f"no archives of classes, servers start more slowly: {error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
