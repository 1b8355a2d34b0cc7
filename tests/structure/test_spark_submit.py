"""The commands for spark-submit in the docs: each option and each setting is one that the installed Spark knows."""

from __future__ import annotations

import re
import shlex
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloud_jobs.submit_bundle import write_bundle

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "centre.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(block.replace("\\\n", " ")) for block in re.findall(r"```\n(spark-submit .*?)```", PAGE, re.DOTALL)
]
IDS = [command[command.index("--master") + 1].partition(":")[0] for command in COMMANDS]
# All that these commands give has a value, as spark-submit's own help says.
CONFIGS = ("spark-core", "spark-kubernetes", "spark-yarn")


def jar(name: str) -> zipfile.ZipFile:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (found,) = (Path(spec.origin).parent / "jars").glob(f"{name}_*.jar")
    return zipfile.ZipFile(found)


@cache
def known_options() -> set[str]:
    """The options that Spark's launcher parses, as they stand in its compiled class."""
    with jar("spark-launcher") as archive:
        content = archive.read("org/apache/spark/launcher/SparkSubmitOptionParser.class")
    return {text.decode() for text in re.findall(rb"--[a-z][a-z-]+", content)}


@cache
def known_settings() -> bytes:
    """All constants of the classes of Spark that define and compose settings."""
    content = []
    for name in CONFIGS:
        with jar(name) as archive:
            names = [one for one in archive.namelist() if re.search(r"[Cc]onf(ig)?(/package)?\$?\.class$", one)]
            content += [archive.read(one) for one in names]
    return b"\n".join(content)


def is_constant(text: str) -> bool:
    """Whether a class has exactly this text among its constants (tag 1, length, bytes)."""
    return b"\x01" + len(text).to_bytes(2) + text.encode() in known_settings()


def is_known(setting: str) -> bool:
    """Whether Spark has the setting itself, the family it belongs to (`...secrets.`), or composes it of two texts."""
    dots = [place for place, letter in enumerate(setting) if letter == "."]
    composed = any(
        is_constant(setting[:dot]) and (is_constant(setting[dot:]) or is_constant("\x01" + setting[dot:]))
        for dot in dots
    )
    return is_constant(setting) or composed or any(is_constant(setting[: dot + 1]) for dot in dots[2:])


def options_of(command: list[str]) -> dict[str, list[str]]:
    """Each option with its values; the words from the main file on are the job's."""
    found: dict[str, list[str]] = {}
    words = iter(command[1:])
    for word in words:
        if not word.startswith("--"):
            found[""] = [word, *words]
            return found
        found.setdefault(word, []).append(next(words))
    raise AssertionError(f"no main file: {command}")


def test_there_is_a_command_for_each_kind_of_cluster() -> None:
    assert IDS == ["spark", "k8s", "yarn"]


@pytest.mark.parametrize("command", COMMANDS, ids=IDS)
def test_each_option_is_one_of_spark_submit(command: list[str]) -> None:
    assert {"--master", "--py-files", "--conf", "--num-executors", "--archives"} <= known_options()
    assert set(options_of(command)) - {""} <= known_options()


@pytest.mark.parametrize("command", COMMANDS, ids=IDS)
def test_each_setting_is_one_of_spark(command: list[str]) -> None:
    settings = [pair.partition("=")[0] for pair in options_of(command)["--conf"]]
    assert [setting for setting in settings if not is_known(setting)] == []


def test_a_setting_that_spark_does_not_have_is_found() -> None:
    assert not is_known("spark.kubernetes.container.picture")
    assert not is_known("spark.python.pyspark")


@pytest.mark.parametrize("command", COMMANDS, ids=IDS)
def test_each_file_is_one_of_the_bundle(command: list[str], tmp_path: Path) -> None:
    write_bundle(tmp_path / "build")
    options = options_of(command)
    for file in (*options["--py-files"], options[""][0]):
        _, _, relative = file.rpartition("build/")
        assert list((tmp_path / "build").glob(relative)), file
