"""The project as one zip, so that executors run the driver's code without a folder that both can see."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from waybill.daemon.durable_file import replace_durably

# Files for `spark-submit`: the project and its main file.

MAIN_FILE: Final = '''"""The command `cloud-jobs`, for spark-submit: give it waybill.zip by --py-files."""

from waybill.commands import cloud_jobs

cloud_jobs()
'''


class SubmitBundle(NamedTuple):
    """The files of a bundle, by the options of `spark-submit` that take them."""

    py_files: Path
    main_file: Path


def write_bundle(folder: Path) -> SubmitBundle:
    """Writes `waybill.zip` and `cloud_jobs_main.py` into the folder; what was there is replaced. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "waybill.zip"
    with TemporaryDirectory(prefix="waybill-bundle-") as made:
        replace_durably(archive, write_project_archive(Path(made)).read_bytes())
    main_file = folder / "cloud_jobs_main.py"
    replace_durably(main_file, MAIN_FILE.encode())
    return SubmitBundle(archive, main_file)


PROJECT_PACKAGES: Final = ("cloud_jobs", "geo", "waybill")
"""What the jobs import of the project, on the driver and on executors."""

_LEFT_OUT: Final = ("__pycache__", ".pyc")
# The oldest time that a zip can hold: the bytes of an archive depend on the content alone.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def write_project_archive(folder: Path) -> Path:
    """Writes `waybill-DIGEST.zip` with the installed packages, named by its content; returns its path.

    A driver that itself runs from such an archive has no files to pack: its own archive is returned.
    """
    found = own_archive()
    if found is not None:
        return found
    content = archive_bytes({package: package_folder(package) for package in PROJECT_PACKAGES})
    path = folder / f"waybill-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    folder.mkdir(parents=True, exist_ok=True)
    replace_durably(path, content)
    return path


def archive_bytes(packages: dict[str, Path]) -> bytes:
    """A zip of these packages (name -> folder): the same bytes for the same files, whenever and wherever."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for package, folder in sorted(packages.items()):
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not any(part.endswith(_LEFT_OUT) for part in file.parts):
                    entry = zipfile.ZipInfo(f"{package}/{file.relative_to(folder).as_posix()}", _TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, file.read_bytes())
    return out.getvalue()


def own_archive() -> Path | None:
    """The zip that this process's project was imported from; None where it was installed as files."""
    archive = getattr(find_spec("cloud_jobs").loader, "archive", None)  # type: ignore[union-attr]  # we are in it
    return Path(archive) if archive is not None else None


def package_folder(package: str) -> Path:
    """Where an installed package of the project lies."""
    spec = find_spec(package)
    origin = spec.origin if spec is not None else None
    assert origin is not None, f"{package} is installed with us"
    return Path(origin).parent
