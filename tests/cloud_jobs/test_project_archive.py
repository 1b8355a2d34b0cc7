"""The zip from which executors import the project: complete, the same for the same code, and enough on its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from cloud_jobs.project_archive import PROJECT_PACKAGES, write_project_archive
from cloud_jobs.spark import EXECUTOR_PACKAGES

# What is pickled by name into tasks: the source, and the parts of the jobs that run on executors.
ON_EXECUTORS = (
    "cloud_jobs.spark",
    "cloud_jobs.geofence.event_revisions",
    "cloud_jobs.ingest.micro_batch",
    "cloud_jobs.ingest.parts",
    "cloud_jobs.derived.incremental",
    "cloud_jobs.lake.data_files",
    "cloud_jobs.proximity.encounters",
    "cloud_jobs.proximity.encounters",
    "cloud_jobs.pulsar_source",
    "cloud_jobs.usage.metering",
)
PRINT_ORIGINS = """
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
own = {{name.partition(".")[0] for name in sys.modules}}
places = sorted({{sys.modules[name].__file__ for name in {packages!r} if name in sys.modules}})
print(";".join(places))
print(";".join(sorted(name for name in own if name in {known!r})))
"""


def run_apart(archive: Path, folder: Path, code: str) -> list[str]:
    """Python with this environment's packages and the archive, but without the links to the source tree."""
    libraries = sysconfig.get_path("purelib")
    environment = {**os.environ, "PYTHONPATH": f"{archive}:{libraries}"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_executors_run_is_imported_from_the_archive_alone(tmp_path: Path) -> None:
    archive = write_project_archive(tmp_path / "archive")
    known = ("jinja2", "pyspark", "typer", *EXECUTOR_PACKAGES)
    code = PRINT_ORIGINS.format(modules=ON_EXECUTORS, packages=PROJECT_PACKAGES, known=known)
    places, imported = run_apart(archive, tmp_path, code)
    assert places
    assert all(place.startswith(f"{archive}/") for place in places.split(";"))
    needed = set(imported.split(";")) - {"pyspark"}
    assert needed <= set(EXECUTOR_PACKAGES), "each package that executors import is looked for when a job starts"
