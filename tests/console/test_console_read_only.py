"""The console only reads: no page writes anything but its line of the access log."""

from pathlib import Path

import httpx

from console.pages.documents import FORMS
from tests.console.conftest import Served, addresses_of_pages


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file, and the time of change of each folder."""
    found = {str(one.relative_to(folder)): one.stat() for one in folder.rglob("*")}
    return {name: (made.st_size, made.st_mtime_ns) for name, made in found.items()}


def test_a_crawl_of_every_page_changes_nothing_but_the_access_log(billed: Served, billed_lake: Path) -> None:
    addresses, folder = addresses_of_pages(billed), billed_lake.parent
    before = files_below(folder)
    document = addresses["/documents/{number}"].partition("?")[0]
    files = [f"{document}.{suffix}" for suffix in FORMS]
    with httpx.Client(base_url=billed.url, timeout=30) as client:
        for address in (*addresses.values(), "/replay/data", *files):
            for accept in ("text/html", "application/json"):
                assert client.get(address, headers={"accept": accept}).status_code == 200, address
    after = files_below(folder)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    [log] = changed
    assert log.startswith("lake-access-")
    assert log.endswith(".jsonl")
