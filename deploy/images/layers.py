"""Layers of an image as tar archives: the same files give the same bytes."""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path without a leading `/` has one of these forms; `*` also stands for `/`."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


class Layer:
    """Files by their paths in the image. Later ones replace earlier ones; all belong to root."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._members

    def read(self, path: str) -> bytes:
        return self._members[path][1]

    def paths(self) -> Iterator[str]:
        return iter(sorted(self._members))

    def add(self, path: str, content: bytes = b"", *, mode: int = 0o644, kind: bytes = tarfile.REGTYPE) -> None:
        """Add a file, or with `kind` a folder (`tarfile.DIRTYPE`)."""
        info = tarfile.TarInfo(path)
        info.mode, info.type = mode, kind
        self._members[path] = info, content

    def link(self, path: str, target: str) -> None:
        info = tarfile.TarInfo(path)
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        self._members[path] = info, b""

    def add_archive(self, archive: Path, wanted: Callable[[str], bool]) -> None:
        """Add the wanted files and links of a tar archive, without devices and empty folders."""
        with tarfile.open(archive) as source:
            for found in source:
                path = found.name.removeprefix("./")
                if found.issym() and wanted(path):
                    self.link(path, found.linkname)
                elif found.islnk() and wanted(path):
                    # what it links to can be left out, so it becomes a file of its own
                    content = source.extractfile(found.linkname)
                    self.add(path, content.read() if content else b"", mode=_mode(found.mode))
                elif found.isreg() and wanted(path):
                    content = source.extractfile(found)
                    self.add(path, content.read() if content else b"", mode=_mode(found.mode))

    def add_folder(self, folder: Path, at: str, wanted: Callable[[str], bool]) -> None:
        """Add the wanted files of a folder, by their paths in it, at a path of the image."""
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder).as_posix()
            if path.is_file() and wanted(inside):
                self.add(f"{at}/{inside}", path.read_bytes(), mode=_mode(stat.S_IMODE(path.stat().st_mode)))

    def write(self, target: Path, time_s: int) -> None:
        """Write the archive with each folder before what is in it; everything has the time `time_s`."""
        parents = {str(up) for path in self._members for up in PurePosixPath(path).parents} - {"."}
        for path in parents - self._members.keys():
            self.add(path, mode=0o755, kind=tarfile.DIRTYPE)
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(self._members):
                info, content = self._members[path]
                info.size, info.mtime = len(content), time_s
                archive.addfile(info, io.BytesIO(content))


def _mode(mode: int) -> int:
    """Readable by everybody, writable by root, without set-user-id."""
    return 0o755 if mode & 0o111 else 0o644
