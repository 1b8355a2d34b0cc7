"""What an authority signed for devices: each file counts once, and none is missed because it could not be read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access.issued import PUT_AWAY_AFTER_S, IssuedReader
from waybill.identity.authority import KeyPair, make_request
from waybill.identity.authority_folder import AuthorityFolder

NOW = datetime.now(UTC)
LIFE = timedelta(days=9)
KEY = KeyPair.generate()


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFolder:
    root = AuthorityFolder.create_root(tmp_path / "root", "root", now=NOW, lifetime=99 * LIFE)
    return AuthorityFolder.create_regional(tmp_path / "eu", root, "eu", now=NOW, lifetime=99 * LIFE)


def sign(authority: AuthorityFolder, device: str) -> Path:
    issued = authority.device(make_request(KEY, f"acme/{device}"), "acme", device, now=NOW, lifetime=LIFE)
    return authority.folder / "issued" / f"{issued.serial:040x}.pem"


def names(reader: IssuedReader) -> list[str]:
    return sorted(one.name for one in reader.read_new())


class Unreadable:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files: set[Path] = set()
        read = Path.read_bytes

        def read_bytes(path: Path) -> bytes:
            if path in self.files:
                raise PermissionError(13, "Permission denied", str(path))
            return read(path)

        patch.setattr(Path, "read_bytes", read_bytes)


def test_each_certificate_of_a_device_is_read_once(authority: AuthorityFolder) -> None:
    reader = IssuedReader(authority)
    assert names(reader) == []
    sign(authority, "bus-1")
    authority.client(KEY, "gateway@eu-1", now=NOW, lifetime=LIFE)
    assert names(reader) == ["acme/bus-1"]
    sign(authority, "bus-2")
    assert names(reader) == ["acme/bus-2"]
    assert names(reader) == []


def test_a_file_that_cannot_be_read_is_named_and_read_when_it_can(
    authority: AuthorityFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, unreadable = IssuedReader(authority), Unreadable(monkeypatch)
    file = sign(authority, "bus-1")
    unreadable.files = {file}
    assert names(reader) == []
    assert f"as {file}: Permission denied" in reader.problem
    sign(authority, "bus-2")
    assert names(reader) == ["acme/bus-2"]
    assert reader.problem
    unreadable.files.clear()
    assert names(reader) == ["acme/bus-1"]
    assert reader.problem == ""


def test_what_is_no_certificate_is_named_until_it_is_one(authority: AuthorityFolder) -> None:
    reader = IssuedReader(authority)
    content = sign(authority, "bus-1").read_bytes()
    reader.read_new()
    copied = authority.folder / "issued" / "copied.pem"
    copied.write_bytes(content[:50])
    assert names(reader) == []
    assert "copied.pem: " in reader.problem
    copied.write_bytes(content)
    assert (names(reader), reader.problem) == (["acme/bus-1"], "")
    copied.unlink()
    assert names(reader) == []


def copies(authority: AuthorityFolder, count: int) -> None:
    content = sign(authority, "bus-1").read_bytes()
    for number in range(1, count):
        (authority.folder / "issued" / f"{number:040x}.pem").write_bytes(content)


def test_what_ended_long_ago_is_put_away_by_a_right_clock_and_neither_listed_nor_read_again(
    authority: AuthorityFolder,
) -> None:
    copies(authority, 5)
    authority.client(KEY, "gateway@eu-1", now=NOW, lifetime=LIFE)
    now_s, is_right = NOW.timestamp(), False
    reader = IssuedReader(authority, lambda: now_s, lambda: is_right)
    assert len(reader.read_new()) == 5
    now_s = NOW.timestamp() + LIFE.total_seconds() + PUT_AWAY_AFTER_S - 60
    reader.read_new()
    now_s += 3600
    reader.read_new()
    assert len([*(authority.folder / "issued").iterdir()]) == 6
    is_right = True
    late = authority.device(make_request(KEY, "acme/bus-9"), "acme", "bus-9", now=NOW, lifetime=20 * LIFE)
    assert names(reader) == ["acme/bus-9"]
    assert [file.name for file in (authority.folder / "issued").iterdir()] == [f"{late.serial:040x}.pem"]
    assert len([*(authority.folder / "ended").iterdir()]) == 6
    assert names(IssuedReader(authority)) == ["acme/bus-9"], "after a start"
    assert names(reader) == []
