"""`make images`: the images as archives in `dist/images`, which `docker load`, `podman load` and containerd read.

Each folder beside them is the context from which the image was built: `docker build dist/images/gateway` makes the
same image. Arguments are names of images; without any, all are built.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.images.containerfile import containerfile
from deploy.images.debian import debian_layer
from deploy.images.layers import Layer
from deploy.images.plan import IMAGES, JDK, PULSAR, Image
from deploy.images.python import python_layer, wheels_of
from deploy.local.pulsar import cache_folder, pulsar_home
from deploy.packages.__main__ import VERSION, source_time_s
from deploy.packages.components import bill_of_materials, components_of
from deploy.packages.errors import PackagingError
from deploy.packages.wheels import ROOT, build_project, sha256

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BUILD_S = 1800
_TITLE = "org.opencontainers.image"


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image as an archive."""

    archive: Path
    size: int
    """Bytes, not compressed."""
    sha256: str


def build(folder: Path, images: Sequence[Image]) -> Mapping[str, Built]:
    """Build the images and their contexts in `folder`: each by its name.

    Raises PackagingError, also where one is larger than its limit.
    """
    made = {}
    architecture = _ARCHITECTURES[platform.machine()]
    time_s = source_time_s()
    os.environ["SOURCE_DATE_EPOCH"] = str(time_s)  # hatchling reads it
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        build_project(Path(work))
        (own,) = Path(work).glob("*.whl")
        for image in images:
            started_s = time.monotonic()
            context = folder / image.name
            shutil.rmtree(context, ignore_errors=True)
            context.mkdir()
            wheels = [own, *wheels_of(image, architecture)] if image.extra else []
            _write_layers(context, image, architecture, wheels, time_s)
            text = containerfile(image, _labels(image, time_s))
            for name in ("Containerfile", "Dockerfile"):
                (context / name).write_text(text, encoding="utf-8")
            archive = folder / f"waybill-{image.name}_{VERSION}_{architecture}.tar"
            size = _build_image(context, image, archive, time_s)
            made[image.name] = Built(archive=archive, size=size, sha256=sha256(archive))
            took_s = time.monotonic() - started_s
            digest = made[image.name].sha256[:12]
            sys.stdout.write(f"{archive.name}: {size / 1e6:,.0f} MB, SHA-256 {digest}…, {took_s:.0f} s\n")
            if size > image.limit_mb * 1e6:
                raise PackagingError(image.name, f"{size / 1e6:.0f} MB is more than its {image.limit_mb} MB")
    return made


def _write_layers(context: Path, image: Image, architecture: str, wheels: Sequence[Path], time_s: int) -> None:
    debian, packages = debian_layer(image.debian)
    debian.write(context / "debian.tar", time_s)
    if image.java:
        jdk, versions = debian_layer(JDK)
        jdk.write(context / "jdk.tar", time_s)
        packages = {**packages, **{name: versions[name] for name in JDK}}
    if not image.extra:
        server = Layer()
        server.add_folder(pulsar_home(), "opt/pulsar", lambda path: not path.startswith(("bin/", "instances/")))
        server.write(context / "pulsar.tar", time_s)
        return
    components = components_of(wheels, texts_needed=False)  # an SBOM only, no text of licences
    python = python_layer(image, architecture, wheels)
    name = f"waybill-{image.name}"
    purl = f"pkg:oci/{name}@{VERSION}?arch={architecture}"
    listed = bill_of_materials(name, VERSION, components, purl=purl, time_s=time_s, debian=packages)
    python.add("usr/share/waybill/sbom.cdx.json", listed.encode())
    python.write(context / "python.tar", time_s)


def _labels(image: Image, time_s: int) -> Mapping[str, str]:
    return {
        f"{_TITLE}.title": f"waybill-{image.name}",
        f"{_TITLE}.description": image.title,
        f"{_TITLE}.version": VERSION,
        f"{_TITLE}.licenses": "Apache-2.0",
        f"{_TITLE}.created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s)),
    }


def _build_image(context: Path, image: Image, archive: Path, time_s: int) -> int:
    """Build the image with buildah, write its archive; the size of its layers in bytes."""
    storage = cache_folder() / "images" / "storage"
    storage.mkdir(parents=True, exist_ok=True)
    settings = storage / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{storage}/graph"\nrunroot = "{storage}/run"\n', encoding="utf-8"
    )
    environment = os.environ | {"CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "chroot"}
    tag = f"localhost/waybill-{image.name}:{VERSION}"
    archive.unlink(missing_ok=True)
    for words in (
        ["bud", "--quiet", "--network=none", f"--timestamp={time_s}", "-t", tag, str(context)],
        ["push", "--quiet", tag, f"docker-archive:{archive}:{tag}"],
        ["rmi", tag],
    ):
        done = subprocess.run(
            ["buildah", *words], capture_output=True, text=True, timeout=_BUILD_S, env=environment, check=False
        )
        if done.returncode:
            raise PackagingError(f"buildah {words[0]}", (done.stderr or done.stdout).strip().splitlines()[-1])
    return archive.stat().st_size


def main(names: Sequence[str]) -> None:
    known = {**IMAGES, PULSAR.name: PULSAR}
    if unknown := sorted(set(names) - known.keys()):
        sys.stderr.write(f"images: no image is named {', '.join(unknown)}; there are {', '.join(known)}\n")
        raise SystemExit(2)
    try:
        build(ROOT / "dist" / "images", [known[name] for name in names or IMAGES])
    except PackagingError as error:
        sys.stderr.write(f"images: {error}\n")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main(sys.argv[1:])
