"""The Debian package of the agent: a complete Python environment under /opt, and the service.

The environment has the layout of a venv without pip; its Python is the machine's. Extension modules of several
versions of Python lie side by side, so one package serves several releases of Debian.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

from packaging.version import Version

from deploy.packages.components import bill_of_materials, components_of, licences_text
from deploy.packages.errors import PackagingError
from deploy.packages.wheels import MACHINES, PYTHONS, ROOT

NAME = "waybill-edge-agent"
HOME = PurePosixPath("opt", NAME)
DOCUMENTS = PurePosixPath("usr/share/doc", NAME)
AGENT_PACKAGES = ("edge_agent", "waybill")
"""The import roots of the project that the agent needs."""
_SOURCES = Path(__file__).with_name("debian")
_UNIT = ROOT / "deploy" / "systemd" / "edge-agent.service"
_PAGE = ROOT / "docs" / "edge-agent.md"
_LEFT_OUT = (
    "*.c",
    "*.h",
    "*.pyi",
    "*.pyx",
    "*.dist-info/[!M]*",  # all but METADATA: licences and SBOM are documents of the package
    "cffi/*",  # cryptography reads its compiled backend only
    "pycparser/*",
    "pydantic/mypy.py",
    "pydantic/v1/*",
    "pygments/lexers/[!_]*",  # nothing highlights a language
    "pygments/lexers/_*_builtins.py",
)
"""What of the wheels the agent never reads."""
_TOOL_S = 600


def package_path(folder: Path, version: str, architecture: str) -> Path:
    return folder / f"{NAME}_{debian_version(version)}_{architecture}.deb"


def debian_version(version: str) -> str:
    """The version as Debian sorts it: a release candidate comes before its release."""
    text = str(Version(version)).replace(".dev", "~~dev")
    return re.sub(r"(?<=\d)(a|b|rc)", r"~\1", text)


def build_package(
    folder: Path, own: Path, wheels: Sequence[Path], *, version: str, architecture: str, time_s: int
) -> Path:
    """Build the package in `folder` from the project's wheel and those of its dependencies.

    The same wheels, version and time give the same bytes. Raises PackagingError.
    """
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as work:
        tree = Path(work) / "tree"
        _write_environment(tree, own, wheels, architecture)
        _write_documents(tree, [own, *wheels], version, architecture, time_s)
        _copy(_UNIT, tree / "usr/lib/systemd/system" / _UNIT.name)
        (tree / "etc/waybill").mkdir(parents=True)
        _write_control(tree, version, architecture)
        _normalise(tree)
        target = package_path(folder, version, architecture)
        # One thread: with several, xz cuts the data into blocks by their number.
        command = [
            "dpkg-deb",
            "--build",
            "--root-owner-group",
            "-Zxz",
            "-z9",
            "--threads-max=1",
            str(tree),
            str(target),
        ]
        _run(command, {"SOURCE_DATE_EPOCH": str(time_s)})
    return target


def is_left_out(member: str) -> bool:
    """Whether a file of a wheel, by its path in it, is not installed."""
    return any(fnmatchcase(member, pattern) for pattern in _LEFT_OUT)


def _write_environment(tree: Path, own: Path, wheels: Sequence[Path], architecture: str) -> None:
    home = tree / HOME
    first, *others = PYTHONS
    site = home / "lib" / f"python{first}" / "site-packages"
    for wheel in wheels:
        _unpack(wheel, site)
    _unpack(own, site, roots=AGENT_PACKAGES)
    for python in others:
        (home / "lib" / f"python{python}").symlink_to(f"python{first}")
    libraries = sorted(site.rglob("*.so"))
    if libraries:
        strip = f"{MACHINES[architecture]}-linux-gnu-strip"
        _run([strip, "--strip-unneeded", "--enable-deterministic-archives", *map(str, libraries)], {})
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n", encoding="utf-8")
    _copy(_SOURCES / "edge-agent", home / "bin/edge-agent")
    program = tree / "usr/bin/edge-agent"
    program.parent.mkdir(parents=True)
    program.symlink_to(f"/{HOME}/bin/edge-agent")


def _unpack(wheel: Path, site: Path, roots: Sequence[str] = ()) -> None:
    """Unpack a wheel; with `roots`, only these packages of it and its metadata."""
    with ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            top = member.partition("/")[0]
            if top.endswith(".data"):
                raise PackagingError(wheel.name, f"{member} belongs outside of site-packages")
            chosen = not roots or top in roots or top.endswith(".dist-info")
            if chosen and not member.endswith("/") and not is_left_out(member):
                archive.extract(member, site)


def _write_documents(tree: Path, wheels: Sequence[Path], version: str, architecture: str, time_s: int) -> None:
    components = components_of(wheels)
    purl = f"pkg:deb/waybill/{NAME}@{debian_version(version)}?arch={architecture}"
    bill = bill_of_materials(NAME, version, components, purl=purl, time_s=time_s)
    documents = {
        "copyright": licences_text(f"{NAME} {version}: its components and their licences", components),
        "sbom.cdx.json": bill,
        "examples/agent.toml": _PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0],
    }
    for name, text in documents.items():
        target = tree / DOCUMENTS / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _write_control(tree: Path, version: str, architecture: str) -> None:
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    installed_kib = sum(-(-path.stat().st_size // 1024) for path in files)
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files]  # noqa: S324 - dpkg's format
    control = tree / "DEBIAN"
    control.mkdir()
    (control / "md5sums").write_text("".join(sums), encoding="utf-8")
    fields = {
        "version": debian_version(version),
        "architecture": architecture,
        "installed_kib": str(installed_kib),
    }
    text = (_SOURCES / "control").read_text(encoding="utf-8").format(**fields)
    (control / "control").write_text(text, encoding="utf-8")
    for script in ("postinst", "prerm", "postrm"):
        _copy(_SOURCES / script, control / script)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _normalise(tree: Path) -> None:
    """Give each file the mode of its kind, whatever the builder's umask is."""
    programs = {tree / "DEBIAN" / name for name in ("postinst", "prerm", "postrm")} | {tree / HOME / "bin/edge-agent"}
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path in programs else 0o644)


def _run(command: list[str], environment: dict[str, str]) -> None:
    if shutil.which(command[0]) is None:
        raise PackagingError(command[0], "this program is missing: run `deploy/bootstrap.sh package-tools`")
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=_TOOL_S, check=False
    )
    if done.returncode:
        raise PackagingError(command[0], done.stderr.strip() or f"ended with {done.returncode}")
