"""A Debian root that the test makes itself, and a network namespace with nothing but a loopback."""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.pulsar import cache_folder

INCLUDED = "python3,systemd"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h


def release() -> str:
    """The code name of this machine's Debian; the test is skipped elsewhere."""
    found = platform.freedesktop_os_release()
    if os.geteuid() != 0 or found.get("ID") != "debian":
        pytest.skip("a Debian root is made by root on Debian")
    return found["VERSION_CODENAME"]


def root_archive() -> Path:
    """A tar archive of a minimal Debian from this machine's own apt sources, made once and cached."""
    code_name = release()
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.[ls]*")]
    sources = sorted(str(path) for path in lists if path.suffix in {".list", ".sources"} and path.is_file())
    version = hashlib.sha256(f"{code_name} {INCLUDED}".encode()).hexdigest()[:12]
    archive = cache_folder() / f"debian-root-{code_name}-{version}.tar"
    if archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        options = Path(work) / "apt.conf"
        options.write_text(_output("apt-config", "dump", "Acquire"), encoding="utf-8")
        made = Path(work) / "root.tar"
        words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}", f"--aptopt={options}"]
        _output(*words, code_name, str(made), *sources)
        made.replace(archive)
    return archive


class DebianRoot:
    """An unpacked root; programs run in it with the test's network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755)
        _output("tar", "-xf", str(root_archive()), "-C", str(folder))

    def path(self, inside: str) -> Path:
        return self.folder / inside.lstrip("/")

    def command(self, line: str, user: str = "root") -> list[str]:
        """The words that run a line of shell in the root."""
        inside = shlex.join(["setpriv", "--reuid", user, "--regid", user, "--init-groups", "sh", "-c", f"exec {line}"])
        return ["unshare", "--mount", "--mount-proc", "--root", str(self.folder), "sh", "-c", f"cd / && exec {inside}"]

    def run(self, line: str, user: str = "root") -> str:
        """Run a line and return what it wrote; AssertionError with its words where it fails."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/"}
        command = self.command(line, user)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def dpkg(self, action: str, package: Path | str) -> str:
        """Let dpkg do something with a package file, or with an installed package."""
        if isinstance(package, Path):
            inside = self.path(package.name)
            inside.write_bytes(package.read_bytes())
            package = f"/{package.name}"
        return self.run(f"dpkg {action} {package}")


@contextmanager
def no_network() -> Iterator[None]:
    """This thread, and the threads and processes that it starts, see a loopback and no other interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        if libc.unshare(_NEW_NETWORK):
            pytest.skip("a network namespace needs root")
        try:
            _output("ip", "link", "set", "lo", "up")
            yield
        finally:
            assert libc.setns(before.fileno(), _NEW_NETWORK) == 0


def _output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
    return done.stdout
