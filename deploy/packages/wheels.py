"""The wheels that a deployed extra needs: which ones, their hashes, and archives of them.

All come from `requirements.txt`, cut to what an extra needs by the metadata of the installed packages.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from deploy.packages.errors import PackagingError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ("3.11", "3.13")
"""The versions of Python that packages run on: those of Debian 12 and 13."""
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's architectures, and how the platform tag of a wheel names each."""
GLIBC = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
"""Platforms whose C library is not newer than the one of Debian 12."""
_DOWNLOAD_S = 1800


def declared(extra: str | None) -> list[Requirement]:
    """The requirements of an extra, with those of the extras that it names; None: the common ones."""
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]
    for line in PROJECT["optional-dependencies"][extra] if extra else ():
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            requirements += [inner for name in sorted(requirement.extras) for inner in declared(name)]
        else:
            requirements.append(requirement)
    return requirements


@cache
def brought(extra: str | None) -> frozenset[str]:
    """The distributions that an extra installs, by the metadata of the installed packages."""
    waiting, found = declared(extra), set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in found:
            continue
        found.add(key)
        for line in metadata.requires(requirement.name) or ():
            inner = Requirement(line)
            if any(
                inner.marker is None or inner.marker.evaluate({"extra": name}) for name in (*requirement.extras, "")
            ):
                waiting.append(inner)
    return frozenset(name for name, _ in found)


def write_lists(folder: Path) -> None:
    """Write `requirements-EXTRA.txt` for each deployed extra. `folder` has one wheel, the project's."""
    for extra in PROJECT["optional-dependencies"].keys() - {"dev"}:
        packages = [block for name in sorted(brought(extra)) for block in _locked()[name]]
        lines = [_own_line(project_wheel(folder), extra), *packages]
        (folder / f"requirements-{extra}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shutil.copy(ROOT / "requirements-build.txt", folder)


def build_project(folder: Path) -> Path:
    """Build the project's wheel and source archive in `folder`; the path of the wheel."""
    _run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT)
    return project_wheel(folder)


def project_wheel(folder: Path) -> Path:
    """The only wheel in `folder`."""
    (wheel,) = folder.glob("*.whl")
    return wheel


def download(
    extra: str, machine: str, folder: Path, *, pythons: Sequence[str] = PYTHONS, built: frozenset[str] = frozenset()
) -> list[Path]:
    """Download the wheels that an extra needs on Debian's architecture `machine`, for each Python version.

    Each is one of those whose hashes `requirements.txt` has; for the distributions in `built`, which have no wheel, it
    is made from the source archive with such a hash. Raises PackagingError, also where another one has no wheel.
    """
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for python in pythons:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as wanted:
            wanted.write("\n".join(_pinned(python, brought(extra) - built)))
            wanted.flush()
            tag = f"cp{python.replace('.', '')}"
            platforms = [word for name in GLIBC for word in ("--platform", f"{name}_{MACHINES[machine]}")]
            abis = [word for name in (tag, "abi3", "none") for word in ("--abi", name)]
            target = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *abis, *platforms]
            _run([*pip, "download", "--no-deps", "--require-hashes", *target, "-r", wanted.name, "-d", str(folder)])
        if sources := list(_pinned(python, brought(extra) & built)):
            with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as wanted:
                wanted.write("\n".join(sources))
                wanted.flush()
                options = ["--no-deps", "--require-hashes", "--no-build-isolation"]
                _run([*pip, "wheel", *options, "-r", wanted.name, "-w", str(folder)])
    return sorted(folder.glob("*.whl"))


def write_wheelhouse(
    target: Path, extra: str, wheels: Sequence[Path], own: Path, *, documents: Mapping[str, str], time_s: int
) -> None:
    """Write a tar archive of wheels and a list of their hashes, the same bytes for the same wheels.

    `pip install --no-index` installs from it without a network. `documents` are further text files.
    """
    lines = [_own_line(own, extra)]
    hashes = defaultdict[str, list[str]](list)
    for wheel in wheels:
        distribution, version, *_ = parse_wheel_filename(wheel.name)
        hashes[f"{distribution}=={version}"].append(f"--hash=sha256:{sha256(wheel)}")
    lines += [" \\\n    ".join([pin, *hashes[pin]]) for pin in sorted(hashes)]
    texts = {**documents, "requirements.txt": "\n".join(lines) + "\n"}
    members = {path.name: path.read_bytes() for path in (own, *wheels)}
    members |= {name: text.encode() for name, text in texts.items()}
    top = target.name.removesuffix(".tar")
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(members):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(members[name]), time_s, 0o644
            archive.addfile(entry, io.BytesIO(members[name]))


def wheel_texts(wheel: Path) -> Iterator[tuple[str, str]]:
    """Each text in the `dist-info` folder of a wheel, with its path in that folder."""
    with ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            folder, _, inner = name.partition("/")
            if folder.endswith(".dist-info") and inner and not inner.endswith("/"):
                yield inner, archive.read(name).decode("utf-8", errors="replace")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _locked() -> Mapping[str, list[str]]:
    """The blocks of `requirements.txt` by package, which has one for each range of versions of Python."""
    locked = defaultdict[str, list[str]](list)
    for block in re.split(r"\n(?=\S)", (ROOT / "requirements.txt").read_text(encoding="utf-8").rstrip()):
        locked[canonicalize_name(block.partition("==")[0])].append(block)
    return locked


def _pinned(python: str, names: frozenset[str]) -> Iterator[str]:
    """The blocks for one version of Python, without their markers: pip would judge them for its own version."""
    for name in sorted(names):
        for block in _locked()[name]:
            pin, hashes = block.split(" \\\n", 1)
            requirement = Requirement(pin)
            if requirement.marker is None or requirement.marker.evaluate(
                {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
            ):
                yield f"{requirement.name}{requirement.specifier} \\\n{hashes}"


def _own_line(wheel: Path, extra: str) -> str:
    return f"./{wheel.name}[{extra}] --hash=sha256:{sha256(wheel)}"


def _run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    if done.returncode:
        raise PackagingError(" ".join(command[2:5]), (done.stderr or done.stdout).strip().splitlines()[-1])
