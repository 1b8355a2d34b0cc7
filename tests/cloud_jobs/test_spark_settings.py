"""Where Spark runs: one machine by default, a cluster by its master URL, wrong settings named before a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.spark import spark_properties

CLUSTER = "spark://10.0.0.5:7077"


def test_without_a_cluster_the_driver_listens_on_loopback_alone() -> None:
    properties = spark_properties(SparkSettings(), "local[2]")
    assert properties["spark.driver.host"] == properties["spark.driver.bindAddress"] == "127.0.0.1"
    assert properties["spark.master"] == "local[2]"
    assert not any(name.startswith(("spark.executor", "spark.cores", "spark.blockManager")) for name in properties)


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
