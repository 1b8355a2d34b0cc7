"""Files of contracts."""

from __future__ import annotations

from collections.abc import Iterable

from cloud_jobs.billing.contracts import contracts_of_toml
from cloud_jobs.billing.contracts.toml_text import MAX_TEXT_FAULTS
from cloud_jobs.reference.files import _contracts_in
from tests.cloud_jobs.billing.contracts.test_toml_text import EXAMPLE

MAX_SECONDS = 0.15
FUZZED_BYTES = 4096


def seeds() -> Iterable[bytes]:
    """Contracts, and texts that are repeated, of wrong types, or full of faults."""
    yield EXAMPLE.encode()
    yield b"[[tariff]]\nid = 1\n" * 3000
    yield b"[[tarif]]\n[account]\n[[legal_entity]]\n'a b'.\"c\".d = 1e99\n"
    yield b"[[tariff]]\nprices = [" + b"{amount = 1.5}, " * 3000 + b"]"
    yield b"[[account]]\ndevices = [{a = 1}, # ]\n {b = '''\n]''' }]\n"
    yield b"[[tariff]]\n" + b"".join(b"a%d.b.c = 0.1\n" % number for number in range(4000))


def judge(data: bytes) -> None:
    """Contracts and faults, each with a line of the text; and what is right can be published, or it is said why not."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return
    found, faults = contracts_of_toml(text)
    lines = text.count("\n") + text.count("\r") + 1
    assert len(faults) <= MAX_TEXT_FAULTS
    assert all(0 <= fault.line <= lines for fault in faults)
    assert all(0 <= one.line_of() <= lines for one in found)
    for read in _contracts_in(text):
        read.place_of()


def bounded(data: bytes) -> None:
    """The reading of the file, once."""
    contracts_of_toml(data.decode("utf-8-sig", "replace"))
