"""What is in the packages, made from wheels of a few bytes: files, rights, scripts, licences, SBOM, and equal bytes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from deploy.packages.components import bill_of_materials, components_of, licences_text
from deploy.packages.debian_package import build_package, debian_version
from deploy.packages.errors import PackagingError
from deploy.packages.wheels import PROJECT, write_wheelhouse
from tests.deploy.packages.tiny_wheels import PROJECT_FILES, tiny_wheels, write_wheel

TIME_S = 1_767_603_422
SITE = "./opt/waybill-edge-agent/lib/python3.11/site-packages"
SCRIPTS = sorted(Path("deploy/packages/debian").glob("p*"))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def build(folder: Path, version: str = "1.2.0") -> Path:
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    own, others = tiny_wheels(wheels)
    return build_package(folder, own, others, version=version, architecture="amd64", time_s=TIME_S)


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_package_has_these_files_all_of_root(tmp_path: Path) -> None:
    lines = [line.split(maxsplit=5) for line in output("dpkg-deb", "-c", build(tmp_path)).splitlines()]
    assert {line[1] for line in lines} == {"root/root"}
    assert {line[3] for line in lines} == {"2026-01-05"}
    listed = {line[5]: line[0] for line in lines if not line[5].endswith("/")}
    assert listed == {
        "./opt/waybill-edge-agent/bin/edge-agent": "-rwxr-xr-x",
        "./opt/waybill-edge-agent/bin/python3 -> /usr/bin/python3": "lrwxrwxrwx",
        "./opt/waybill-edge-agent/lib/python3.13 -> python3.11": "lrwxrwxrwx",
        "./opt/waybill-edge-agent/pyvenv.cfg": "-rw-r--r--",
        f"{SITE}/edge_agent/__init__.py": "-rw-r--r--",
        f"{SITE}/fast_codec/__init__.py": "-rw-r--r--",
        f"{SITE}/fast_codec-1.0.dist-info/METADATA": "-rw-r--r--",
        f"{SITE}/fleet_waybill-1.0.dist-info/METADATA": "-rw-r--r--",
        f"{SITE}/pygments/__init__.py": "-rw-r--r--",
        f"{SITE}/pygments/lexers/__init__.py": "-rw-r--r--",
        f"{SITE}/pygments-1.0.dist-info/METADATA": "-rw-r--r--",
        f"{SITE}/waybill/commands.py": "-rw-r--r--",
        "./usr/bin/edge-agent -> /opt/waybill-edge-agent/bin/edge-agent": "lrwxrwxrwx",
        "./usr/lib/systemd/system/edge-agent.service": "-rw-r--r--",
        "./usr/share/doc/waybill-edge-agent/copyright": "-rw-r--r--",
        "./usr/share/doc/waybill-edge-agent/examples/agent.toml": "-rw-r--r--",
        "./usr/share/doc/waybill-edge-agent/sbom.cdx.json": "-rw-r--r--",
    }


def test_two_builds_are_equal_to_the_byte_whatever_the_umask_is(tmp_path: Path) -> None:
    with umask(0o022):
        first = build(tmp_path / "first")
    with umask(0o077):
        second = build(tmp_path / "second")
    assert first.read_bytes() == second.read_bytes()


def test_the_package_names_its_version_and_architecture(tmp_path: Path) -> None:
    package = build(tmp_path, "1.2.0rc1")
    assert package.name == "waybill-edge-agent_1.2.0~rc1_amd64.deb"
    assert output("dpkg-deb", "-f", package, "Version", "Architecture").split() == [
        *("Version:", "1.2.0~rc1"),
        *("Architecture:", "amd64"),
    ]


@pytest.mark.parametrize(("earlier", "later"), [("1.2.0rc1", "1.2.0"), ("1.2.0.dev3", "1.2.0a1"), ("0.9", "0.10")])
def test_dpkg_sorts_versions_as_pip_does(earlier: str, later: str) -> None:
    output("dpkg", "--compare-versions", debian_version(earlier), "lt", debian_version(later))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_of_the_package_is_posix_and_keeps_the_buffer(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/bin/sh\nset -e\n")
    output("dash", "-n", script)
    deletes = [line for line in text.splitlines() if "rm " in line and not line.strip().startswith("echo")]
    assert not [line for line in deletes if "BUFFER" in line or "/var/lib" in line]


def test_the_sbom_is_valid_and_lists_what_is_compiled_in(tmp_path: Path) -> None:
    own, others = tiny_wheels(tmp_path)
    components = components_of([own, *others])
    text = bill_of_materials("agent", "1.2.0", components, purl="pkg:deb/waybill/agent@1.2.0", time_s=TIME_S)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    listed = {one["name"]: one for one in document["components"]}
    assert listed.keys() == {"fast-codec", "fleet-waybill", "pygments"}
    assert [part["name"] for part in listed["fast-codec"]["components"]] == ["crate"]
    assert [one["url"] for one in listed["fast-codec"]["externalReferences"]] == sorted(
        path.name for path in others if path.name.startswith("fast")
    )
    needs = {one["ref"]: one["dependsOn"] for one in document["dependencies"]}
    assert needs["pkg:pypi/fleet-waybill@1.0"] == ["pkg:pypi/fast-codec@1.0"]


def test_every_licence_is_in_the_text_and_a_wheel_without_one_is_refused(tmp_path: Path) -> None:
    own, others = tiny_wheels(tmp_path)
    text = licences_text("title", components_of([own, *others]))
    assert all(f"{name} is free" in text for name in ("fleet_waybill", "fast_codec", "pygments"))
    assert "crate 1 (in fast-codec): MIT" in text
    without = write_wheel(tmp_path, "nameless", ("nameless.py",), documents={"top_level.txt": "nameless"})
    with pytest.raises(PackagingError, match="has no text of its licence"):
        components_of([without])


def test_a_wheelhouse_installs_without_an_index_and_a_changed_wheel_does_not(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    own = write_wheel(wheels, "fleet_waybill", PROJECT_FILES)
    other = write_wheel(wheels, "fast_codec", ("fast_codec/__init__.py",))
    archives = [tmp_path / name / "house.tar" for name in ("first", "second")]
    for archive in archives:
        archive.parent.mkdir()
        write_wheelhouse(archive, "edge", [other], own, documents={"LICENCES": "text"}, time_s=TIME_S)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    output("tar", "-xf", archives[0], "-C", tmp_path)
    house = tmp_path / "house"
    requirements = (house / "requirements.txt").read_text(encoding="utf-8")
    assert "://" not in requirements
    assert install(house, tmp_path / "installed").returncode == 0
    assert (tmp_path / "installed/fast_codec/__init__.py").is_file()
    write_wheel(house, "fast_codec", ("fast_codec/other.py",))
    refused = install(house, tmp_path / "refused")
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stderr


def install(house: Path, target: Path) -> subprocess.CompletedProcess[str]:
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "-f", "."]
    command = [*pip, "--require-hashes", "--target", str(target), "-r", "requirements.txt"]
    return subprocess.run(command, cwd=house, capture_output=True, text=True, timeout=120, check=False)


def test_the_agent_needs_no_more_than_the_standard_library_for_its_database() -> None:
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["edge"]]
    assert not [line for line in lines if "sqlite" in line]
