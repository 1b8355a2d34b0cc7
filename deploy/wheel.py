"""`make packages`: next to the wheel in `dist`, a list of packages with their hashes for each extra.

The lists are `requirements.txt`, cut to what the extra needs by the metadata of the installed packages.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tomllib
from collections import defaultdict
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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
    """Write `requirements-EXTRA.txt` for each deployed extra. `folder` has the wheel, and nothing else."""
    (wheel,) = folder.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.txt").read_text(encoding="utf-8").rstrip())
    locked = defaultdict[str, list[str]](list)
    for block in blocks:  # a package has one for each range of versions of Python
        locked[canonicalize_name(block.partition("==")[0])].append(block)
    for extra in PROJECT["optional-dependencies"].keys() - {"dev"}:
        packages = [block for name in sorted(brought(extra)) for block in locked[name]]
        lines = [f"./{wheel.name}[{extra}] --hash=sha256:{digest}", *packages]
        (folder / f"requirements-{extra}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shutil.copy(ROOT / "requirements-build.txt", folder)


if __name__ == "__main__":
    write_lists(ROOT / "dist")
