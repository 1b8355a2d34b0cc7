"""The Python part of an image: an environment in /opt/waybill with the wheels that `requirements.txt` names."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.images.layers import Layer, matches
from deploy.images.plan import KEPT_TESTS, LEFT_OUT_OF_WHEELS, Image
from deploy.local.pulsar import cache_folder
from deploy.packages.errors import PackagingError
from deploy.packages.wheels import GLIBC, MACHINES, PROJECT, ROOT, brought, download

PYTHON = "3.11"
HOME = "opt/waybill"
_SITE_PACKAGES = f"{HOME}/lib/python{PYTHON}/site-packages"
_WITHOUT_WHEEL = frozenset({"pyspark"})
_INSTALL_S = 900


def wheels_of(image: Image, architecture: str) -> list[Path]:
    """The wheels of an image, without the project's own, from the user's cache. Raises PackagingError."""
    locked = (ROOT / "requirements.txt").read_bytes()
    version = hashlib.sha256(locked + repr(sorted(brought(image.extra))).encode()).hexdigest()[:12]
    folder = cache_folder() / "images" / f"wheels-{image.extra}-{architecture}-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work) / "wheels"
            made.mkdir()
            download(image.extra, architecture, made, pythons=[PYTHON], built=_WITHOUT_WHEEL)
            made.rename(folder)
    return sorted(folder.glob("*.whl"))


def python_layer(image: Image, architecture: str, wheels: Sequence[Path]) -> Layer:
    """The environment with all wheels, the project's own among them. Raises PackagingError."""
    layer = Layer()
    with tempfile.TemporaryDirectory() as work:
        platforms = [word for name in GLIBC for word in ("--platform", f"{name}_{MACHINES[architecture]}")]
        abis = [word for name in (f"cp{PYTHON.replace('.', '')}", "abi3", "none") for word in ("--abi", name)]
        target = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *abis, *platforms]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        options = ["--no-index", "--no-deps", "--no-compile", "--target", work]
        command = [*pip, *options, *target, *map(str, wheels)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
        if done.returncode:
            raise PackagingError("pip install", (done.stderr or done.stdout).strip().splitlines()[-1])
        layer.add_folder(Path(work), _SITE_PACKAGES, lambda path: is_needed(path, image))
    layer.add(
        f"{HOME}/pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n".encode()
    )
    for name in ("python", "python3"):
        layer.link(f"{HOME}/bin/{name}", f"/usr/bin/python{PYTHON}")
    for command_name in image.commands:
        module, _, function = PROJECT["scripts"][command_name].partition(":")
        script = f"#!/{HOME}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        layer.add(f"{HOME}/bin/{command_name}", script.encode(), mode=0o755)
    if image.java:
        submit = (Path(__file__).parent / "spark_submit.py").read_text(encoding="utf-8")
        replaced = f"#!/{HOME}/bin/python\n{submit}".encode()
        layer.add(f"{_SITE_PACKAGES}/pyspark/bin/spark-submit", replaced, mode=0o755)
    layer.add(f"{HOME}/LICENSE", (ROOT / "LICENSE").read_bytes())
    return layer


def is_needed(path: str, image: Image) -> bool:
    """Whether an image has this file of a wheel, by its path in site-packages."""
    if matches(path, image.without) or path.startswith("bin/"):
        return False
    return matches(path, KEPT_TESTS) or not matches(path, LEFT_OUT_OF_WHEELS)
