"""Where Spark runs: this machine, or a cluster by its master URL. What contradicts itself is named before it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from waybill.daemon.bounded_file import read_secret
from waybill.mqtt.broker_settings import is_this_machine
from waybill.settings import PathElsewhere, Settings, file_fault

_MASTER: Final = re.compile(
    r"local|local\[(?:\d+|\*)(?:,\d+)?\]|spark://[^\s,/:]+:\d+(?:,[^\s,/:]+:\d+)*|yarn|k8s://\S+", re.ASCII
)
_SIZE: Final = r"^\d+[mg]$"
_PORT_FIELDS: Final = ("driver_port", "block_manager_port")
_OF_EXECUTORS: Final = ("executor_memory", "executor_cores", "max_cores", "python", "secret_file", *_PORT_FIELDS)
_LEAST_SECRET: Final = 16
_MAX_SECRET_BYTES: Final = 4096

SPARK_NAMES: Final[Mapping[str, str]] = {
    "master": "spark.master",
    "driver_memory": "spark.driver.memory",
    "driver_host": "spark.driver.host",
    "driver_bind_address": "spark.driver.bindAddress",
    "driver_port": "spark.driver.port",
    "block_manager_port": "spark.blockManager.port",
    "executor_memory": "spark.executor.memory",
    "executor_cores": "spark.executor.cores",
    "max_cores": "spark.cores.max",
    "shuffle_partitions": "spark.sql.shuffle.partitions",
}
"""The settings that Spark has under a name of its own."""


class SparkSettings(Settings):
    """How Spark runs. `master` is Spark's own URL; sizes are Spark's, such as `700m` or `4g`.

    Without a cluster there are no executors: the driver computes, its memory is all there is, and it listens on
    loopback alone.
    """

    master: str = "local[2]"
    driver_memory: str = Field(default="1g", pattern=_SIZE)
    driver_host: str | None = Field(
        default=None, min_length=1, description="the name or address at which executors reach the driver"
    )
    driver_bind_address: str | None = Field(
        default=None, min_length=1, description="the address that the driver listens on, where it is another one"
    )
    driver_port: int | None = Field(default=None, ge=1024, le=65_535, description="where executors reach the driver")
    block_manager_port: int | None = Field(
        default=None, ge=1024, le=65_535, description="first of the ports from which driver and executors take one each"
    )
    executor_memory: str | None = Field(default=None, pattern=_SIZE, description="heap of one executor")
    executor_cores: int | None = Field(default=None, ge=1, le=1024, description="tasks that an executor runs at once")
    max_cores: int | None = Field(
        default=None, ge=1, le=100_000, description="most cores that a job takes of a standalone cluster"
    )
    python: PathElsewhere | None = Field(
        default=None, min_length=1, description="the interpreter of Spark's Python processes, on every machine"
    )
    secret_file: Path | None = Field(
        default=None, description="the secret that a standalone cluster and its jobs share, in a file of mode 600"
    )
    executor_timeout_s: float = Field(
        default=300.0, gt=0, le=3600, description="how long a job waits for its first executors to answer"
    )
    shuffle_partitions: int = Field(default=2, ge=1, le=100_000)
    extra: dict[str, str] = Field(default_factory=dict, description="any further Spark settings, by their own names")

    @field_validator("master")
    @classmethod
    def _master_is_one(cls, master: str) -> str:
        if not _MASTER.fullmatch(master):
            raise ValueError(f"{master!r} is no master of Spark: local[N], spark://HOST:PORT, yarn or k8s://ADDRESS")
        return master

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found = self._faults_of_extra()
        if self.driver_port is not None and self.driver_port == self.block_manager_port:
            found.append("driver_port and block_manager_port are the same port")
        if None not in (self.executor_cores, self.max_cores) and (self.executor_cores or 0) > (self.max_cores or 0):
            found.append("executor_cores exceeds max_cores, so that no executor would be started")
        # Without a master in the file `spark-submit` may name one: see `placement_faults`.
        if "master" in self.model_fields_set:
            found += placement_faults(self, self.master)
        if found:
            raise ValueError("; ".join(found))
        return self

    def _faults_of_extra(self) -> list[str]:
        owned = {name: field for field, name in SPARK_NAMES.items()}
        found = [f"extra: {key} is set by {owned[key]}" for key in self.extra if key in owned]
        return found + [f"extra: {key} is no setting of Spark" for key in self.extra if not key.startswith("spark.")]

    def secret(self) -> str | None:
        """What `secret_file` holds; None without one. Raises ValueError for a file that cannot be used."""
        if self.secret_file is None:
            return None
        try:
            text = read_secret(self.secret_file, _MAX_SECRET_BYTES).strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"secret_file: {self.secret_file}: {file_fault(error)}") from None
        if len(text) < _LEAST_SECRET:
            raise ValueError(f"secret_file: {self.secret_file}: it has fewer than {_LEAST_SECRET} characters")
        return text

    def is_open(self) -> bool:
        """Whether a standalone cluster runs the code of everybody who reaches its master."""
        asked = self.secret_file is not None or self.extra.get("spark.authenticate") == "true"
        return bool(standalone_addresses(self.master)) and not asked


def is_local(master: str) -> bool:
    """Whether Spark runs in the driver's process alone."""
    return master.startswith("local")


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master that a `spark://` URL names; empty for any other."""
    if not master.startswith("spark://"):
        return []
    pairs = (one.rpartition(":") for one in master.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, _, port in pairs]


def placement_faults(settings: SparkSettings, master: str) -> list[str]:
    """What of the settings contradicts this master, one sentence each."""
    if is_local(master):
        useless = [name for name in _OF_EXECUTORS if getattr(settings, name) is not None]
        return [f"{', '.join(useless)}: with {master} there are no executors"] if useless else []
    found = []
    masters = standalone_addresses(master)
    if settings.max_cores is not None and not masters:
        found.append(f"max_cores is for a standalone cluster, not for {master}")
    if settings.driver_host and is_this_machine(settings.driver_host):
        elsewhere = [host for host, _ in masters if not is_this_machine(host)] if masters else [master]
        if elsewhere:
            found.append(f"driver_host {settings.driver_host} is this machine only: {elsewhere[0]} cannot reach it")
    return found
