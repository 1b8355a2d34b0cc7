"""Small files that a process keeps for the next one, damaged: the first byte chooses which."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from cloud_jobs.pulsar_source.cluster_monitor import FailoverFile, FailoverState, QueryIdentity
from cloud_jobs.pulsar_source.options import FailoverFileError
from cloud_jobs.pulsar_source.position import Offset
from deploy.local.errors import FolderDamaged, FolderNotOurs, StackNotRunning
from deploy.local.folder import claim
from deploy.local.ports import PortBook
from deploy.local.stack_state import StackState, running
from edge_agent.store.epochs import LINEAGE, Lineage, read_lineage, write_lineage
from tests.fuzz.bounds import check_refusal

FOLDER = Path(tempfile.mkdtemp(prefix="waybill-fuzz-state-"))
MARK = ".waybill-folder"
FILES = {"failover": "failover.json", "lineage": LINEAGE, "ports": "ports.json", "stack": "stack.json", "mark": MARK}


def _failover() -> None:
    FailoverFile(FOLDER / FILES["failover"]).load()


def _lineage() -> None:
    lineage = read_lineage(FOLDER)
    if lineage is not None:
        write_lineage(FOLDER, lineage)


def _ports() -> None:
    PortBook(FOLDER / FILES["ports"], timeout_s=0.0)


def _stack() -> None:
    running(FOLDER)
    StackState.load(FOLDER)


def _mark() -> None:
    claim(FOLDER)


READERS: tuple[tuple[str, Callable[[], None], tuple[type[Exception], ...]], ...] = (
    ("failover", _failover, (FailoverFileError,)),
    ("lineage", _lineage, ()),
    ("ports", _ports, (FolderDamaged,)),
    ("stack", _stack, (StackNotRunning, FolderDamaged)),
    ("mark", _mark, (FolderNotOurs,)),
)


def seeds() -> Iterable[bytes]:
    """Each as it is written, and texts of other types, deep, or full of large numbers."""
    _clear()
    kept = FailoverFile(FOLDER / FILES["failover"])
    state = FailoverState("eu").with_created("eu", ["t-0"])
    kept.save(QueryIdentity("q", "s", "t"), state)
    write_lineage(FOLDER, Lineage("t/d", 1, 2, 3, 4, "m", 5))
    (FOLDER / FILES["ports"]).write_bytes(b'{"mqtt": 20001, "pulsar": 20002}')
    process = {"pid": 1, "start_ticks": 2, "boot_id": "b"}
    stack = {"supervisor": process, "phase": "ready", "started_s": 1.0, "servers": [], "links": {}}
    (FOLDER / FILES["stack"]).write_bytes(json.dumps(stack).encode())
    marked = FOLDER / "marked"
    claim(marked)
    whole = {name: (FOLDER / file).read_bytes() for name, file in FILES.items() if name != "mark"}
    whole["mark"] = (marked / MARK).read_bytes()
    for number, (name, *_) in enumerate(READERS):
        yield bytes([number]) + whole[name]
        for odd in (b"", b"[" * 9000, b'[Infinity, 1e999, "\\ud800"]', b'{"version": 2}', b"9" * 5000, b"\xff"):
            yield bytes([number]) + odd
    yield b"\x00" + json.dumps(json.loads(whole["failover"]) | {"abandoned": [5], "created": {"a": {}}}).encode()
    yield b"\x01" + b"[2, {}, Infinity, 1e400, null, [], 1, 1]"
    assert Offset("eu", {}).to_json()


def judge(data: bytes) -> None:
    """The file is read, or refused with the error of its reader."""
    if not data:
        return
    name, read, refusals = READERS[data[0] % len(READERS)]
    _clear()
    (FOLDER / FILES[name]).write_bytes(data[1:])
    try:
        read()
    except refusals as error:
        check_refusal(error)


def _clear() -> None:
    for file in FILES.values():
        (FOLDER / file).unlink(missing_ok=True)
