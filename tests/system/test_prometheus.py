"""A real Prometheus reads what the processes serve, and its rules see it."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.metrics.run_metrics import RunMetrics
from cloud_jobs.metrics.serving import metric_routes
from cloud_jobs.status.centre_metrics import CentreCollector
from deploy.local.jvm import cache_folder
from deploy.local.ports import free_port
from gateway.metrics import GatewayMetrics
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, take_in
from tests.cloud_jobs.status.watched import looked
from tests.deploy.alerting_rules import RULES, rules
from tests.waiting import PATIENCE, wait_until
from waybill.daemon.status_server import StatusServer, metrics_answer

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


class Prometheus:
    """The server, which reads some addresses each second."""

    def __init__(self, folder: Path, targets: dict[str, int]) -> None:
        program = shutil.which("prometheus") or str(cache_folder() / "promtool" / "prometheus")
        assert Path(program).is_file(), "Prometheus is not here: run `make setup`"
        scraped = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"region": "eu"}}]}
            for job, port in targets.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": scraped,
        }
        # JSON is YAML
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        self._port = free_port()
        self.process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
            cwd=folder,
        )

    def ask(self, path: str) -> Any:
        """The data of an answer; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=10) as answer:
                return json.loads(answer.read())["data"]
        except (OSError, urllib.error.HTTPError):
            return None

    def value(self, query: str) -> list[float]:
        """The values of a query now."""
        found = self.ask(f"query?query={query}")
        return [] if found is None else [float(one["value"][1]) for one in found["result"]]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[dict[str, int]]:
    """The metrics of a gateway, of a centre that is not healthy, and of a job whose runs fail; the port of each."""
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    centre, job, gateway = CentreCollector(600), RunMetrics("usage", 60), GatewayMetrics()
    centre.looked(looked(lake), ("nobody maintains it",))
    for _ in range(3):
        with pytest.raises(OSError, match="gone"), job.run():
            raise OSError("gone")
    with (
        StatusServer("127.0.0.1", 0, metric_routes(centre.registry(), centre.health)) as first,
        StatusServer("127.0.0.1", 0, metric_routes(job.registry, job.health)) as second,
        StatusServer("127.0.0.1", 0, {"/metrics": lambda: metrics_answer(gateway.registry)}) as third,
    ):
        yield {"waybill-centre": first.port, "waybill-jobs": second.port, "waybill-gateway": third.port}


def test_it_reads_each_process_and_its_rules_find_what_is_wrong(tmp_path: Path, served: dict[str, int]) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    server = Prometheus(folder, served)
    try:
        wait_until(lambda: server.value("up") == [1.0] * 3, timeout_s=60, said=lambda: server.ask("targets"))
        assert server.value('waybill_centre_table_rows{table="records"}') == [2.0]
        assert server.value("waybill_jobs_failed_runs") == [3.0]
        red = {"WaybillCentreUnhealthy", "WaybillJobFails", "WaybillGatewayUnhealthy"}
        wait_until(lambda: red <= found(server), timeout_s=60, said=lambda: server.ask("alerts"))
        known = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
        assert [rule["name"] for rule in known if rule["health"] == "err"] == []
        assert len(known) == len(rules())
    finally:
        server.process.terminate()
        assert server.process.wait(30 * PATIENCE) == 0


def found(server: Prometheus) -> set[str]:
    """The alerts that wait or fire."""
    answer = server.ask("alerts")
    return set() if answer is None else {one["labels"]["alertname"] for one in answer["alerts"]}
