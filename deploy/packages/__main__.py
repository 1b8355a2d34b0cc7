"""`make packages`: what another machine installs, in `dist`.

- the project's wheel and source archive, and for each extra a list of packages with their hashes
- the agent's Debian package for each architecture
- for the extras named as arguments (without any: `edge`), archives with all wheels for each architecture
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.packages.components import bill_of_materials, components_of, licences_text
from deploy.packages.debian_package import build_package
from deploy.packages.errors import PackagingError
from deploy.packages.wheels import (
    MACHINES,
    PROJECT,
    ROOT,
    build_project,
    download,
    sha256,
    write_lists,
    write_wheelhouse,
)

VERSION = PROJECT["version"]


def source_time_s() -> int:
    """The time of the sources: $SOURCE_DATE_EPOCH, else of the last commit."""
    if chosen := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(chosen)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout)


def build(folder: Path, extras: list[str]) -> None:
    """Build everything in `folder`, which is emptied first."""
    time_s = source_time_s()
    os.environ["SOURCE_DATE_EPOCH"] = str(time_s)  # hatchling reads it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    own = build_project(folder)
    write_lists(folder)
    for extra in dict.fromkeys(["edge", *extras]):
        for machine in MACHINES:
            with tempfile.TemporaryDirectory() as downloads:
                wheels = download(extra, machine, Path(downloads))
                if extra == "edge":
                    build_package(folder, own, wheels, version=VERSION, architecture=machine, time_s=time_s)
                name = f"waybill-wheelhouse-{extra}"
                components = components_of([own, *wheels])
                purl = f"pkg:generic/{name}@{VERSION}?arch={machine}"
                documents = {
                    "LICENCES": licences_text(f"{name} {VERSION}: its components and their licences", components),
                    "sbom.cdx.json": bill_of_materials(name, VERSION, components, purl=purl, time_s=time_s),
                }
                target = folder / f"{name}_{VERSION}_{machine}.tar"
                write_wheelhouse(target, extra, wheels, own, documents=documents, time_s=time_s)
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()))
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")


if __name__ == "__main__":
    try:
        build(ROOT / "dist", sys.argv[1:])
    except PackagingError as error:
        sys.stderr.write(f"packages: {error}\n")
        raise SystemExit(1) from error
