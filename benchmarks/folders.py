"""Where a benchmark keeps what it writes: gigabytes, which nobody wants afterwards."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def benchmark_folder(name: str) -> Iterator[Path]:
    """A folder that is gone when the benchmark has ended; one that failed keeps it, and says where, for its logs."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        yield folder
    except Exception:
        sys.stderr.write(f"what the servers wrote is kept: {folder}\n")
        raise
    except BaseException:  # interrupted: nothing is to be looked for in it
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
