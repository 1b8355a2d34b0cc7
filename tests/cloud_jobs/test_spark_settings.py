"""Where Spark runs: one machine by default, a cluster by its master URL, wrong settings named before a start."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cloud_jobs.errors import SparkNotReady
from cloud_jobs.spark import _contradictions, spark_properties, start_spark
from cloud_jobs.spark_settings import SPARK_NAMES, SparkSettings, is_local, placement_faults, standalone_addresses

CLUSTER = "spark://10.0.0.5:7077"


def test_without_a_cluster_the_driver_listens_on_loopback_alone() -> None:
    properties = spark_properties(SparkSettings(), "local[2]")
    assert properties["spark.driver.host"] == properties["spark.driver.bindAddress"] == "127.0.0.1"
    assert properties["spark.master"] == "local[2]"
    assert not any(name.startswith(("spark.executor", "spark.cores", "spark.blockManager")) for name in properties)


def test_on_a_cluster_the_driver_is_where_the_settings_say() -> None:
    placed = SparkSettings(
        master=CLUSTER,
        driver_host="jobs.example.org",
        driver_bind_address="0.0.0.0",  # noqa: S104 - of a test
        driver_port=7078,
        block_manager_port=7079,
        executor_memory="4g",
        executor_cores=4,
        max_cores=16,
    )
    properties = spark_properties(placed, placed.master)
    assert {name: properties[name] for name in SPARK_NAMES.values()} == {
        "spark.master": CLUSTER,
        "spark.driver.memory": "1g",
        "spark.driver.host": "jobs.example.org",
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - as above
        "spark.driver.port": "7078",
        "spark.blockManager.port": "7079",
        "spark.executor.memory": "4g",
        "spark.executor.cores": "4",
        "spark.cores.max": "16",
        "spark.sql.shuffle.partitions": "2",
    }
    unplaced = spark_properties(SparkSettings(master=CLUSTER), CLUSTER)
    assert "spark.driver.host" not in unplaced, "on a cluster the machine's own name is Spark's default"


def test_what_the_user_names_in_spark_s_own_words_has_the_last_word() -> None:
    settings = SparkSettings(extra={"spark.ui.enabled": "true"})
    assert spark_properties(settings, settings.master)["spark.ui.enabled"] == "true"


@pytest.mark.parametrize(
    "master",
    ["local", "local[4]", "local[*]", "local[2,4]", CLUSTER, "spark://a:1,b:2", "yarn", "k8s://https://hq:6443"],
)
def test_each_kind_of_master_is_taken(master: str) -> None:
    assert SparkSettings(master=master).master == master
    assert is_local(master) == master.startswith("local")


@pytest.mark.parametrize("master", ["", "spark://hq", "spark://hq:7077/", "local[]", "mesos://hq:5050", "hq:7077"])
def test_a_master_that_spark_does_not_know_is_refused(master: str) -> None:
    with pytest.raises(ValidationError, match="is no master of Spark"):
        SparkSettings(master=master)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"executor_memory": "1g", "max_cores": 2}, "executor_memory, max_cores: with local"),
        ({"master": CLUSTER, "driver_port": 7000, "block_manager_port": 7000}, "are the same port"),
        ({"master": CLUSTER, "executor_cores": 4, "max_cores": 2}, "executor_cores exceeds max_cores"),
        ({"master": "yarn", "max_cores": 2}, "max_cores is for a standalone cluster, not for yarn"),
        ({"master": CLUSTER, "driver_host": "127.0.0.1"}, "driver_host 127.0.0.1 is this machine only"),
        ({"master": CLUSTER, "extra": {"spark.master": "yarn"}}, "extra: spark.master is set by master"),
        ({"master": CLUSTER, "extra": {"master": "yarn"}}, "extra: master is no setting of Spark"),
        ({"master": CLUSTER, "executor_memory": "1gb"}, "executor_memory"),
        ({"master": CLUSTER, "driver_port": 70}, "driver_port"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SparkSettings.model_validate({"master": "local[2]"} | settings)


def test_without_a_master_in_the_settings_spark_submit_may_name_one() -> None:
    settings = SparkSettings(executor_memory="1g")
    assert placement_faults(settings, "yarn") == []
    assert placement_faults(settings, settings.master) == ["executor_memory: with local[2] there are no executors"]


def test_the_addresses_of_a_master_are_those_of_its_url() -> None:
    assert standalone_addresses("spark://a:1,b:22") == [("a", 1), ("b", 22)]
    assert standalone_addresses("yarn") == standalone_addresses("local[2]") == []


def test_a_master_that_does_not_answer_is_named_before_spark_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SparkNotReady, match=rf"cannot listen on 127.0.0.1, port {port}"):
            start_spark(
                "never", SparkSettings(master=f"spark://127.0.0.1:{port}", driver_host="127.0.0.1", driver_port=port)
            )
    with pytest.raises(SparkNotReady, match=f"nobody answers at spark://127.0.0.1:{port}"):
        start_spark("never", SparkSettings(master=f"spark://127.0.0.1:{port}"))


def test_yarn_without_its_configuration_is_named_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SparkNotReady, match="HADOOP_CONF_DIR"):
        start_spark("never", SparkSettings(master="yarn"))


def test_what_spark_submit_was_given_otherwise_is_named_and_the_rest_is_added() -> None:
    settings = SparkSettings(driver_memory="2g", executor_memory="1g")
    given = {"spark.master": "yarn", "spark.executor.memory": "4g"}
    assert _contradictions(settings, given) == [
        "spark.driver_memory comes too late under spark-submit: give it spark.driver.memory",
        "spark.executor_memory is 1g in the settings, and spark.executor.memory is 4g by spark-submit",
    ]
    assert _contradictions(settings, {}) == []
    agreed = {"spark.driver.memory": "2g", "spark.executor.memory": "1g"}
    assert _contradictions(settings, agreed) == []


def test_a_secret_is_of_a_closed_file_and_authenticates_the_job(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    settings = SparkSettings(master=CLUSTER, secret_file=file)
    with pytest.raises(ValueError, match="no such file"):
        settings.secret()
    file.touch(0o600)
    with pytest.raises(ValueError, match="fewer than 16"):
        settings.secret()
    file.write_text("0123456789abcdef\n")
    assert settings.secret() == "0123456789abcdef"
    file.chmod(0o640)
    with pytest.raises(ValueError, match="mode 640: chmod 600"):
        settings.secret()
    properties = spark_properties(settings, CLUSTER)
    assert properties["spark.authenticate"] == properties["spark.network.crypto.enabled"] == "true"
    assert "spark.authenticate.secret" not in properties


@pytest.mark.parametrize(
    ("more", "is_open"),
    [
        ({"master": CLUSTER}, True),
        ({"master": CLUSTER, "secret_file": "secret"}, False),
        ({"master": CLUSTER, "extra": {"spark.authenticate": "true"}}, False),
        ({"master": "yarn"}, False),
        ({}, False),
    ],
)
def test_a_standalone_cluster_without_a_secret_is_open(more: dict[str, Any], is_open: bool) -> None:
    assert SparkSettings.model_validate(more).is_open() == is_open
