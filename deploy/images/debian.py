"""The Debian part of an image: files of packages, without what installs packages, and without a shell."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.images.layers import Layer, matches
from deploy.images.plan import KEPT_OF_DOCUMENTATION, LEFT_OUT_OF_DEBIAN, PROGRAMS
from deploy.local.pulsar import cache_folder
from deploy.packages.errors import PackagingError

RELEASE = "bookworm"
USER = 10001
_LISTED = "waybill-packages"
_ROOT_S = 900
_PROGRAM_FOLDERS = ("bin/", "sbin/", "usr/bin/", "usr/sbin/", "usr/local/")
_FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/nonexistent\nwaybill:x:{USER}:{USER}:waybill:/tmp:/nonexistent\n",
    "etc/group": f"root:x:0:\nwaybill:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def debian_layer(packages: tuple[str, ...]) -> tuple[Layer, Mapping[str, str]]:
    """The layer, and the version of each Debian package in it by name. Raises PackagingError."""
    archive = _extracted(packages)
    layer = Layer()
    layer.add_archive(archive, is_wanted)
    with tarfile.open(archive) as source:
        listed = source.extractfile(f"./{_LISTED}")
        lines = listed.read().decode().split() if listed else []
    for path, text in _FILES.items():
        layer.add(path, text.encode())
    authorities = Layer()
    authorities.add_archive(archive, lambda path: path.startswith("usr/share/ca-certificates/mozilla/"))
    # Debian's package writes this when it is installed; here nothing is
    layer.add("etc/ssl/certs/ca-certificates.crt", b"".join(map(authorities.read, authorities.paths())))
    layer.add("tmp", mode=0o1777, kind=tarfile.DIRTYPE)
    return layer, dict(sorted(line.removesuffix(".deb").split("_")[:2] for line in lines if line.endswith(".deb")))


def is_wanted(path: str) -> bool:
    """Whether an image has this file of a Debian package."""
    if path.startswith(_PROGRAM_FOLDERS):
        return path in PROGRAMS
    if path.startswith("usr/share/doc/"):
        return matches(path, KEPT_OF_DOCUMENTATION)
    return path != _LISTED and not matches(path, LEFT_OUT_OF_DEBIAN)


def _extracted(packages: tuple[str, ...]) -> Path:
    """A tar archive of the unpacked packages from this machine's apt sources, kept in the user's cache."""
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.[ls]*")]
    sources = sorted(str(path) for path in lists if path.suffix in {".list", ".sources"} and path.is_file())
    index = subprocess.run(
        ["apt-cache", "policy", *packages], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    version = hashlib.sha256(f"{RELEASE} {packages} {index}".encode()).hexdigest()[:12]
    archive = cache_folder() / "images" / f"debian-{RELEASE}-{version}.tar"
    if archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        made = Path(work) / "root.tar"
        listing = f'ls "$1/var/cache/apt/archives" > "$1/{_LISTED}"'
        words = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(packages)}"]
        command = [*words, f"--extract-hook={listing}", RELEASE, str(made), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ROOT_S, check=False)
        if done.returncode:
            raise PackagingError("mmdebstrap", (done.stderr or done.stdout).strip().splitlines()[-1])
        made.replace(archive)
    return archive
