"""New lakes for tests: copies of one that each process makes once, for its tables take a tenth of a second to make."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cloud_jobs.lake.tables import Lake


@cache
def made_once(make: Callable[[Path], object]) -> TemporaryDirectory[str]:
    """A folder that this process keeps, with what `make` put into it."""
    kept = TemporaryDirectory(prefix="waybill-made-once-")
    make(Path(kept.name))
    return kept


def copy_of(make: Callable[[Path], object], folder: Path) -> None:
    """Puts into the folder what `make` would put into it, wherever it stands."""
    shutil.copytree(made_once(make).name, folder, dirs_exist_ok=True)


def new_lake(folder: Path) -> Lake:
    """A lake with all tables, and nothing in them."""
    copy_of(_make, folder)
    return Lake(folder)


def _make(folder: Path) -> None:
    Lake(folder).create()
