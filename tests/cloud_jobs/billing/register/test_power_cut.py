"""A power cut after a command loses all that was not synced: no number that a clerk has seen is given again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

import pytest
from deltalake import DeltaTable

from cloud_jobs.billing.register.ledger import check_numbers
from cloud_jobs.billing.register.operations import issue_period
from cloud_jobs.errors import CloudError, CommitFailed, CommitNotDurable
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, BilledLake, clerk, used


class SyncedDisk:
    """The state of a folder that survives a power cut: that of the start, and each file and folder as last synced.

    A name without a synced content is an empty file. `fails_at`: the sync of a file under this name fails.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._sync = root, os.fsync
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        # open files keep their inode numbers
        self._open: list[int] = []
        self.fails_at = ""
        for path in (root, *root.rglob("*")):
            self._store(path)

    def sync(self, descriptor: int) -> None:
        path = _path(descriptor)
        if self.fails_at and self.fails_at in str(path) and path.is_file():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        self._sync(descriptor)
        self._store(path)

    def cut(self, into: Path) -> Path:
        """The folder after a power cut, in a new place."""
        self._restore(self._root.stat().st_ino, into)
        return into

    def _store(self, path: Path) -> None:
        self._open.append(os.open(path, os.O_RDONLY))
        inode = os.fstat(self._open[-1]).st_ino
        if path.is_dir():
            self._names[inode] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self._contents[inode] = path.read_bytes()

    def _restore(self, inode: int, into: Path) -> None:
        if inode not in self._names:
            into.write_bytes(self._contents.get(inode, b""))
            return
        into.mkdir()
        for name, one in self._names[inode].items():
            self._restore(one, into / name)

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)


def _path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = BilledLake.create(tmp_path / "lake", "van-1", "van-2")
    made.publish(legal_entity(), tariff(price()), account("acme", device("van-1")), account("beta", device("van-2")))
    made.use(used("van-1", 10_000), used("van-2", 4_000))
    made.close("run")
    return made


@pytest.fixture
def disk(billed: BilledLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SyncedDisk(tmp_path / "lake")
    monkeypatch.setattr(os, "fsync", made.sync)
    yield made
    made.close()


def issue(billed: BilledLake, payer: str) -> list[str]:
    """The numbers that a clerk sees."""
    done = issue_period(billed.register, DAYS, [payer], clerk=clerk(token_hex(8)))
    return [one.number for one in done.documents]


def numbers(lake: Lake) -> list[str]:
    documents = BilledLake(lake).register.documents()
    assert check_numbers((one.counter for one in documents), "waybill-eu") == len(documents)
    return [one.number for one in documents]


def nothing(_: pytest.MonkeyPatch, __: BilledLake) -> None:
    """No fault."""


def lost_answer(monkeypatch: pytest.MonkeyPatch, _: BilledLake) -> None:
    """The answer to the commit is lost, and the table cannot be asked at once."""

    def fails(_: object = None) -> NoReturn:
        raise OSError("connection reset")

    _once(monkeypatch, "create_write_transaction", lambda make: fails(make()))
    _once(monkeypatch, "update_incremental", fails)


def other_clerk(monkeypatch: pytest.MonkeyPatch, billed: BilledLake) -> None:
    """Another clerk commits before this one has seen its own commit."""
    _once(monkeypatch, "create_write_transaction", lambda make: (make(), issue(billed, "beta")))


def other_clerk_dies(monkeypatch: pytest.MonkeyPatch, billed: BilledLake) -> None:
    """Another clerk's commit is there, and its process ended before it was synced."""
    sync = os.fsync
    with monkeypatch.context() as dying:
        dying.setattr(os, "fsync", lambda at: None if "_delta_log" in _path(at).parts else sync(at))
        issue(billed, "beta")


def _once(monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[[Callable[[], Any]], object]) -> None:
    real, left = getattr(DeltaTable, name), iter([fault])

    def around(self: DeltaTable, *args: Any, **kwargs: Any) -> Any:
        make = lambda: real(self, *args, **kwargs)  # noqa: E731
        return next(left, lambda make: make())(make)

    monkeypatch.setattr(DeltaTable, name, around)


@pytest.mark.parametrize("fault", [nothing, lost_answer, other_clerk, other_clerk_dies])
def test_a_number_that_a_clerk_has_seen_is_there_after_a_power_cut(
    billed: BilledLake,
    disk: SyncedDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch, BilledLake], None],
) -> None:
    fault(monkeypatch, billed)
    seen = issue(billed, "acme")
    assert len(seen) == 1
    assert {*seen} <= {*numbers(Lake(disk.cut(tmp_path / "after")))}


@pytest.mark.parametrize("error", [CommitNotDurable, CommitFailed])
def test_a_disk_that_confirms_nothing_is_an_error_that_says_what_was_written(
    billed: BilledLake, disk: SyncedDisk, tmp_path: Path, error: type[CloudError]
) -> None:
    stored = int(error is CommitNotDurable)
    disk.fails_at = "/documents/_delta_log" if stored else "/documents/"
    with pytest.raises(error, match=r"documents.*Input/output error"):
        issue(billed, "acme")
    assert (len(numbers(billed.lake)), numbers(Lake(disk.cut(tmp_path / "after")))) == (stored, [])
    disk.fails_at = ""
    assert len(issue(billed, "acme")) == 1 - stored, "the repeated command issues nothing twice"
    assert len(numbers(Lake(disk.cut(tmp_path / "repaired")))) == 1
