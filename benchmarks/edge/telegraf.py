"""Telegraf, built with the plugins that the comparison needs and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from deploy.local.jvm import cache_folder

VERSION = "1.39.3"
PACKAGE = f"github.com/influxdata/telegraf/cmd/telegraf@v{VERSION}"
TAGS = "custom,inputs.mqtt_consumer,outputs.mqtt,parsers.value,serializers.template"
BUILD_TIMEOUT_S = 1800


def find_telegraf() -> Path | None:
    """The program, built once if Go is there; None where there is neither. Raises CalledProcessError."""
    folder = cache_folder() / f"telegraf-{VERSION}"
    program = folder / "telegraf"
    if not program.exists() and shutil.which("go"):
        environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        command = ["go", "install", "-trimpath", "-ldflags", "-s -w", "-tags", TAGS, PACKAGE]
        subprocess.run(command, env=environment, check=True, timeout=BUILD_TIMEOUT_S)
    return program if program.exists() else None


CONFIG = """
[agent]
  interval = "1s"
  flush_interval = "200ms"
  metric_batch_size = 1000
  metric_buffer_limit = 1000000
  buffer_strategy = "disk"
  buffer_directory = "{folder}/buffer"
  omit_hostname = true

[[inputs.mqtt_consumer]]
  servers = ["tcp://127.0.0.1:{intake_port}"]
  topics = ["{topics}"]
  qos = 1
  client_id = "telegraf-in"
  persistent_session = true
  max_undelivered_messages = 100000
  max_reconnect_interval = "1s"
  data_format = "value"
  data_type = "string"

[[outputs.mqtt]]
  startup_error_behavior = "retry"
  servers = ["127.0.0.1:{region_port}"]
  client_id = "telegraf-out"
  topic = "{topic}"
  qos = 1
  data_format = "template"
  template = '{{{{ .Field "value" }}}}'
"""
"""The sizes of its defaults, but a flush as often as our commit, so that its live data do not wait ten seconds."""
