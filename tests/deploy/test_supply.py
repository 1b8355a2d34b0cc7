"""What is installed is what was released: names, digests of fetched files, hashes of packages."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deploy.local.pulsar import cache_folder
from deploy.packages.wheels import PROJECT, ROOT, brought, write_lists

# A name that is asked of a public index, in a command line or in the arguments of one; a path to a wheel is none.
INSTALL = re.compile(
    r"\b(?:pip[x\d.]*|uv|poetry|pipenv|conda)['\",\s]+(?:install|add|download|wheel)\b([^`\n;&|]*)", re.IGNORECASE
)
NAME = re.compile(r"(?<![\w./-])(?:fleet[-_.]?)?waybill(?![\w./-])", re.IGNORECASE)
OLD_NAME = re.compile(r"(?<!fleet-)\bwaybill\[\s*['\"]?(?:edge|gateway|cloud|simulator|local|dev)\b", re.IGNORECASE)


def names_a_stranger(text: str) -> bool:
    return bool(OLD_NAME.search(text) or any(NAME.search(found) for found in INSTALL.findall(text)))


def test_no_text_installs_by_a_public_name() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if ROOT / name != Path(__file__).resolve()]
    assert [
        str(path.relative_to(ROOT))
        for path in files
        if path.is_file() and names_a_stranger(path.read_text(encoding="utf-8", errors="replace"))
    ] == []


def test_what_builds_a_package_has_one_version_and_a_hash() -> None:
    backend = re.search(
        r'^requires = \["(hatchling==[\d.]+)"\]', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    lines = [line for line in (ROOT / "requirements-build.txt").read_text("utf-8").splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert backend
    assert backend[1] in {line.partition(" ")[0] for line in lines}


def test_the_list_of_an_extra_has_the_wheel_and_each_package_with_hashes(tmp_path: Path) -> None:
    (tmp_path / "fleet_waybill-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    write_lists(tmp_path)
    lists = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("requirements-*.txt")}
    assert lists.keys() - {"requirements-build"} == {
        f"requirements-{extra}" for extra in PROJECT["optional-dependencies"].keys() - {"dev"}
    }
    locked = re.split(r"\n(?=\S)", (ROOT / "requirements.txt").read_text("utf-8").rstrip())
    for extra in PROJECT["optional-dependencies"].keys() - {"dev"}:
        first, *packages = re.split(r"\n(?=\S)", lists[f"requirements-{extra}"].rstrip())
        assert first.startswith(f"./fleet_waybill-0.1.0-py3-none-any.whl[{extra}] --hash=sha256:")
        # each range of versions of Python has its own version of some packages
        assert packages == [block for block in locked if canonicalize_name(block.partition("==")[0]) in brought(extra)]
        assert all("--hash=sha256:" in block for block in packages)
    assert len(re.findall(r"^numpy==", lists["requirements-gateway"], re.MULTILINE)) > 1
    assert not {"numpy", "pyspark", "pytest"} & brought("edge")


def bootstrap(step: str, folder: Path, maven: str) -> subprocess.CompletedProcess[str]:
    """Run one step with an `mvn` that delivers what the script `maven` puts into the folder `$out`, as `$file`."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    script = programs / "mvn"
    script.write_text(
        "#!/bin/bash\n"
        'for word; do case $word in -Dartifact=*) IFS=: read -r _ name version type class <<< "${word#*=}";;'
        ' -DoutputDirectory=*) out=${word#*=};; esac; done; mkdir -p "$out"\n'
        f"file=$name-$version${{class:+-$class}}.${{type:-jar}}\n{maven}\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "WAYBILL_CACHE": str(folder / "cache")}
    return subprocess.run(
        [ROOT / "deploy" / "bootstrap.sh", step],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_foreign_server_of_pulsar_is_removed_before_it_is_unpacked(tmp_path: Path) -> None:
    inside = 'mkdir -p "$out/apache-pulsar-$version/bin"; cp /bin/true "$out/apache-pulsar-$version/bin/pulsar"'
    packed = 'tar -czf "$out/$file" -C "$out" "apache-pulsar-$version"; rm -r "$out/apache-pulsar-$version"'
    ended = bootstrap("pulsar", tmp_path, f"{inside}; {packed}")
    assert ended.returncode == 1
    assert "pulsar-server-distribution" in ended.stderr
    assert "SHA-512 differs" in ended.stderr
    assert [*(tmp_path / "cache").iterdir()] == []


def test_the_released_invoice_rules_are_taken_and_with_one_byte_more_they_are_not(tmp_path: Path) -> None:
    released = cache_folder() / "en16931"
    if not released.is_dir() and not os.environ.get("CI"):
        pytest.skip("`make setup` fetches the rules")
    ended = bootstrap("invoice-rules", tmp_path / "good", f'cp "{released}/$file" "$out"')
    assert ended.returncode == 0, ended.stderr
    assert len([*(tmp_path / "good" / "cache" / "en16931").glob("*.jar")]) == 6
    ended = bootstrap("invoice-rules", tmp_path / "bad", f'cp "{released}/$file" "$out"; echo >> "$out/$file"')
    assert ended.returncode == 1
    assert "SHA-512 differs" in ended.stderr
    assert [*(tmp_path / "bad" / "cache").iterdir()] == []
