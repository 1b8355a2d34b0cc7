"""Images from Debian packages and wheels of a few bytes: equal bytes, no shell, and what Spark is started with."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.images.__main__ import build, main
from deploy.images.containerfile import containerfile
from deploy.images.debian import is_wanted
from deploy.images.layers import Layer, matches
from deploy.images.plan import IMAGES, JAVA_MODULES, PROGRAMS, PULSAR, Image
from deploy.images.python import is_needed, python_layer
from deploy.images.spark_submit import deletion, driver_arguments, executor_command, submit_command
from tests.deploy.packages.tiny_wheels import write_wheel

TIME_S = 1_767_603_422
SITE = "opt/waybill/lib/python3.11/site-packages"


def members(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        return {info.name: info for info in archive}


def test_the_same_files_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    contents = {"a/b/one": b"1", "a/two": b"2", "c": b"3"}
    for name, order in (("first", list(contents)), ("second", list(contents)[::-1])):
        layer = Layer()
        for path in order:
            layer.add(path, contents[path])
        layer.link("a/three", "/c")
        layer.write(tmp_path / name, TIME_S)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert list(members(tmp_path / "first")) == ["a", "a/b", "a/b/one", "a/three", "a/two", "c"]


def test_an_archive_brings_files_and_links_without_devices_and_rights(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        for name, kind, mode in (
            ("./usr/sbin/mosquitto", tarfile.REGTYPE, 0o4755),
            ("./usr/bin/su", tarfile.REGTYPE, 0o4755),
            ("./dev/null", tarfile.CHRTYPE, 0o666),
            ("./usr/lib/x.so", tarfile.SYMTYPE, 0o777),
            ("./usr/lib/again", tarfile.LNKTYPE, 0o755),
            ("./usr/share/man/x", tarfile.REGTYPE, 0o640),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid = kind, mode, 1000
            info.linkname = {tarfile.SYMTYPE: "x.so.1", tarfile.LNKTYPE: "./usr/bin/su"}.get(kind, "")
            info.size = 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"elf") if info.size else None)
    layer = Layer()
    layer.add_archive(tmp_path / "root.tar", is_wanted)
    layer.write(tmp_path / "layer.tar", TIME_S)
    found = members(tmp_path / "layer.tar")
    assert set(found) == {"usr", "usr/sbin", "usr/sbin/mosquitto", "usr/lib", "usr/lib/again", "usr/lib/x.so"}
    assert (found["usr/sbin/mosquitto"].mode, found["usr/sbin/mosquitto"].uid) == (0o755, 0)
    assert found["usr/lib/again"].isreg()
    assert found["usr/lib/x.so"].linkname == "x.so.1"


def test_no_program_of_debian_is_a_shell() -> None:
    assert not {Path(path).name for path in PROGRAMS} & {"sh", "bash", "dash", "perl", "busybox", "env"}
    assert not is_wanted("bin/dash")
    assert is_wanted("usr/bin/python3.11")


@pytest.mark.parametrize("image", [*IMAGES.values(), PULSAR], ids=lambda image: image.name)
def test_a_container_file_runs_nothing_by_a_shell_and_not_as_root(image: Image) -> None:
    lines = containerfile(image, {"org.opencontainers.image.version": "1"}).splitlines()
    runs = [line for line in lines if line.startswith("RUN")]
    assert all(json.loads(line.removeprefix("RUN ")) for line in runs)
    program = f"/opt/waybill/bin/{image.commands[0]}" if image.commands else "/opt/java/bin/java"
    assert lines[-1] == f'ENTRYPOINT ["{program}"]'
    assert "USER 10001:10001" in lines
    assert any(",".join(JAVA_MODULES) in line for line in runs) == image.java


def test_a_python_layer_has_the_commands_and_not_the_tests_of_its_wheels(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "numpy", ("numpy/__init__.py", "numpy/testing/__init__.py", "numpy/tests/test_x.py"))
    layer = python_layer(replace(IMAGES["edge-agent"], commands=("edge-agent",)), "amd64", [wheel])
    paths = set(layer.paths())
    assert {f"{SITE}/numpy/__init__.py", f"{SITE}/numpy/testing/__init__.py", "opt/waybill/bin/edge-agent"} <= paths
    assert not {path for path in paths if "/tests/" in path or path.endswith(("RECORD", "direct_url.json"))}
    assert layer.read("opt/waybill/bin/edge-agent").startswith(b"#!/opt/waybill/bin/python\n")


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("pyspark/jars/spark-core_2.13-4.2.0.jar", True),
        ("pyspark/jars/spark-kubernetes_2.13-4.2.0.jar", True),
        ("pyspark/jars/hive-exec-2.3.10-core.jar", False),
        ("pyspark/jars/connect-repl/interface-1.0.28.jar", False),
        ("pyspark/bin/spark-submit", False),
        ("pyarrow/libarrow_python.so.2600", True),
        ("pyarrow/libarrow_python.so.2600.1.0", False),
        ("pandas/_testing/__init__.py", True),
    ],
)
def test_the_centre_has_the_files_that_its_jobs_read(path: str, kept: bool) -> None:
    assert is_needed(path, IMAGES["centre"]) == kept


def test_patterns_stand_for_whole_paths() -> None:
    assert matches("usr/share/man/man1/x", ("usr/share/man/*",))
    assert not matches("opt/usr/share/man/x", ("usr/share/man/*",))


def test_an_executor_is_started_with_what_its_pod_is_told() -> None:
    environment = {
        "SPARK_DRIVER_URL": "spark://driver:7078",
        "SPARK_EXECUTOR_ID": "2",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "spark-7",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "exec-2",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_JAVA_OPT_10": "-Dlast=1",
        "SPARK_JAVA_OPT_2": "-Dfirst=1",
    }
    command = executor_command(environment, "/opt/java/bin/java", "/jars/*")
    assert command[:7] == ["/opt/java/bin/java", "-Dfirst=1", "-Dlast=1", "-Xms512m", "-Xmx512m", "-cp", "/jars/*"]
    assert command[-2:] == ["--podName", "exec-2"]


def test_a_driver_deletes_the_executors_of_its_job_in_its_namespace_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("hq", encoding="ascii")
    (tmp_path / "token").write_text("t0", encoding="ascii")
    request = deletion("app.kubernetes.io/component=usage-executor,app=a b", tmp_path)
    assert (request.get_method(), request.get_header("Authorization")) == ("DELETE", "Bearer t0")
    selected = "app.kubernetes.io/component%3Dusage-executor%2Capp%3Da%20b"
    assert request.full_url.endswith(f".svc/api/v1/namespaces/hq/pods?labelSelector={selected}")


def test_a_driver_of_an_operator_is_submitted_in_its_own_pod() -> None:
    given = driver_arguments({"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}, ["--class", "A", "local:///a.py", "usage"])
    assert given[:4] == ["--conf", "spark.driver.bindAddress=10.0.0.7", "--deploy-mode", "client"]
    assert given[4:] == ["--class", "A", "local:///a.py", "usage"]


def test_the_launcher_s_words_are_run_as_it_prints_them(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nprintf '\\0\\n/opt/java/bin/java\\0-Da=b c\\0\\0pyspark-shell\\0'\n", encoding="utf-8")
    java.chmod(0o755)
    words = submit_command(["pyspark-shell"], str(java), "/jars/*")
    assert words == ["/opt/java/bin/java", "-Da=b c", "", "pyspark-shell"]


def test_an_unknown_image_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gatewya"])
    assert ended.value.code == 2
    assert "gatewya" in capsys.readouterr().err


@pytest.mark.nightly
def test_two_builds_are_equal_and_have_no_shell(tmp_path: Path) -> None:
    digests = {build(tmp_path / folder, [IMAGES["edge-agent"]])["edge-agent"].sha256 for folder in ("one", "two")}
    assert len(digests) == 1
    names = set(members(tmp_path / "one" / "edge-agent" / "debian.tar"))
    assert not {name for name in names if Path(name).name in {"sh", "bash", "dash", "perl", "busybox"}}
