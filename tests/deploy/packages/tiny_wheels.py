"""Wheels of a few bytes, with what a package is made from."""

import base64
import hashlib
import json
from pathlib import Path
from zipfile import ZipFile, ZipInfo

PROJECT_FILES = ("edge_agent/__init__.py", "waybill/commands.py", "cloud_jobs/__init__.py", "deploy/__init__.py")


def write_wheel(
    folder: Path,
    name: str,
    files: tuple[str, ...],
    *,
    version: str = "1.0",
    tag: str = "py3-none-any",
    licence: str = "MIT",
    requires: tuple[str, ...] = (),
    documents: dict[str, str] | None = None,
) -> Path:
    """Write a wheel with these files; `documents` replaces the text of its licence."""
    target = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    texts = dict.fromkeys(files, f"# {name}\n")
    texts |= {f"{info}/{path}": text for path, text in (documents or {"licenses/LICENSE": f"{name} is free"}).items()}
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: {licence}\n{needs}"
    texts[f"{info}/METADATA"] = head
    texts[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    lines = [f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in texts.items()]
    texts[f"{info}/RECORD"] = "".join(lines) + f"{info}/RECORD,,\n"
    with ZipFile(target, "w") as archive:
        for path, text in texts.items():
            # a time of its own: a wheel made two seconds later would have another digest
            member = ZipInfo(path)
            member.external_attr = 0o600 << 16
            archive.writestr(member, text)
    return target


def compiled_parts(*names: str) -> str:
    """An SBOM, as a wheel has one of the libraries that are compiled into it."""
    parts = [
        {"type": "library", "name": name, "version": "1", "licenses": [{"license": {"id": "MIT"}}], "author": "-"}
        for name in names
    ]
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "components": parts})


def tiny_wheels(folder: Path) -> tuple[Path, list[Path]]:
    """The project's wheel, and those of two dependencies, one of them for two versions of Python."""
    own = write_wheel(folder, "fleet_waybill", PROJECT_FILES, requires=("fast-codec", "pygments ; extra == 'dev'"))
    documents = {"licenses/LICENSE": "fast_codec is free", "sboms/codec.cyclonedx.json": compiled_parts("crate")}
    codecs = [
        write_wheel(
            folder,
            "fast_codec",
            ("fast_codec/__init__.py", "fast_codec/hints.pyi"),
            tag=tag,
            requires=("pygments",),
            documents=documents,
        )
        for tag in ("cp311-cp311-manylinux_2_28_x86_64", "cp313-cp313-manylinux_2_28_x86_64")
    ]
    lexers = ("pygments/__init__.py", "pygments/lexers/__init__.py", "pygments/lexers/python.py")
    return own, [*codecs, write_wheel(folder, "pygments", lexers, licence="BSD-2-Clause")]


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
