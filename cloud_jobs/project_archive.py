"""The project as a zip file for executors."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from waybill.daemon.durable_file import replace_durably

PROJECT_PACKAGES: Final = ("cloud_jobs", "geo", "waybill")
"""What the jobs import of the project, on the driver and on executors."""

_LEFT_OUT: Final = ("__pycache__", ".pyc")
# The oldest time that a zip can hold: the bytes of an archive depend on the content alone.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def write_project_archive(folder: Path) -> Path:
    """Writes the installed packages to `waybill-DIGEST.zip`, named by its content; returns its path."""
    content = archive_bytes({package: package_folder(package) for package in PROJECT_PACKAGES})
    path = folder / f"waybill-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    folder.mkdir(parents=True, exist_ok=True)
    replace_durably(path, content)
    return path


def archive_bytes(packages: dict[str, Path]) -> bytes:
    """A zip of packages (name -> folder), reproducible byte by byte."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for package, folder in sorted(packages.items()):
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not any(part.endswith(_LEFT_OUT) for part in file.parts):
                    entry = zipfile.ZipInfo(f"{package}/{file.relative_to(folder).as_posix()}", _TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, file.read_bytes())
    return out.getvalue()


def package_folder(package: str) -> Path:
    """The folder of an installed package of the project."""
    spec = find_spec(package)
    origin = spec.origin if spec is not None else None
    assert origin is not None, f"{package} is installed with us"
    return Path(origin).parent
