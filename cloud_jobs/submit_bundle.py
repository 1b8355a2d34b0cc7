"""What `spark-submit` is given to run the jobs: the project and its main file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from cloud_jobs.project_archive import write_project_archive
from waybill.daemon.durable_file import replace_durably

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
