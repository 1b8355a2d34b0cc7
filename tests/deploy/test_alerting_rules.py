"""Each alerting rule is right PromQL over metrics that exist, fires when it should, and has its section to act by."""

import re
from pathlib import Path

import pytest
import typer
from prometheus_client.registry import CollectorRegistry

from cloud_jobs.job_settings import MetricsSettings
from cloud_jobs.run_metrics import IngestMetrics, RunMetrics
from gateway.metrics import GatewayMetrics
from gateway.webhooks.status import WebhookMetrics
from tests.deploy.alerting_rules import FOLDER, REGIONAL, ROOT, SCRAPE, TESTS, AlertingRule, faults, rules, samples
from tests.deploy.alerting_rules import RULES as RULES_FILE
from tests.deploy.promql import named_in, promtool, template_labels
from tests.structure.metric_registries import REGISTRIES, by_program
from tests.structure.test_documented import APPS, anchors, commands

RULES = {rule.name: rule for rule in rules()}
MONITORING = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
EACH = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
PARTS = ("**Means.** ", "**See.** ", "**Do.** ", "**Green again.** ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "waybill-rules.yml"),
        ("check", "config", SCRAPE.name),
        pytest.param(("test", "rules", TESTS.name), marks=pytest.mark.nightly),
    ],
    ids=["rules", "scrape configuration", "unit tests"],
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments, folder=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_each_group_of_rules_passes_its_unit_tests(tmp_path: Path) -> None:
    """promtool evaluates every rule of a file in every test, so one file for each group costs a third."""
    head, *tests = re.split(r"^(?=  - name: )", TESTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    _, *groups = re.split(r"^(?=  - name: )", RULES_FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    files, written = [], 0
    for number, group in enumerate(groups):
        alerts = set(re.findall(r"- alert: (\w+)", group))
        own = [test for test in tests if set(re.findall(r"alertname: (\w+)", test)) & alerts]
        (tmp_path / f"rules-{number}.yml").write_text(f"groups:\n{group}", encoding="utf-8")
        files.append(f"test-{number}.yml")
        own_head = head.replace(RULES_FILE.name, f"rules-{number}.yml")
        (tmp_path / files[-1]).write_text(own_head + "".join(own), encoding="utf-8")
        written += len(own)
    assert written == len(tests), "a test is about the alerts of one group"
    done = promtool("test", "rules", *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@EACH
def test_each_rule_names_metrics_and_labels_that_exist(rule: AlertingRule) -> None:
    assert faults(named_in(rule.expr)) == []
    written = set(re.findall(r'label_replace\(.*?, "(\w+)"', rule.expr))
    known = {
        label
        for metric in named_in(rule.expr).metrics
        for label in (samples()[metric][1] if metric in samples() else {"job", "instance"})
    }
    grouped = named_in(rule.expr).labels
    kept = grouped if re.search(r"\b(?:sum|max) by", rule.expr) else known | written
    assert set(template_labels(rule.summary)) - {"value"} <= kept


# What `cloud-jobs` runs is one job: each command with a port of its own. Vehicles send what they export by themselves.
JOB_OF = dict.fromkeys(("ingest", "jobs", "maintain", "verdicts"), "waybill-jobs")
SENT_BY_ITSELF = {"agent": "`job: waybill-agent`"}
# How a run of the maintenance ended is in the lake: who reads it there knows also of one that never began.
SAID_BY_ANOTHER = {
    "maintain": {"waybill_centre_maintenance_errors", "waybill_centre_maintenance_end_timestamp_seconds"}
}


@pytest.mark.parametrize("program", REGISTRIES)
def test_each_program_is_read_and_has_a_rule(program: str) -> None:
    text = SCRAPE.read_text(encoding="utf-8")
    job = SENT_BY_ITSELF.get(program) or f"job_name: {JOB_OF.get(program, f'waybill-{program}')}\n"
    assert job in text, "Prometheus does not read it: add a job to deploy/prometheus/prometheus.yml"
    exported = {name for metric in by_program()[program] for name in metric.sample_names}
    exported |= SAID_BY_ANOTHER.get(program, set())
    named = {metric for rule in rules() for metric in named_in(rule.expr).metrics}
    assert exported & named, "nobody is called when something is wrong with it: add a rule to waybill-rules.yml"


def test_each_command_of_the_centre_has_a_target_and_is_named() -> None:
    ports = {name.removesuffix("_port") for name in MetricsSettings.model_fields if name.endswith("_port")} - {"status"}
    comment, _, job = SCRAPE.read_text(encoding="utf-8").partition("  - job_name: waybill-jobs\n")
    last = comment.rstrip().splitlines()[-1]
    assert {name for name in ports if not re.search(rf"`(?:cloud-jobs )?{name}\b", last)} == set()
    assert len(re.findall(r"^ +- [\w.-]+:\d+$", job, re.MULTILINE)) == len(ports)


@EACH
def test_each_rule_has_a_section_that_says_what_to_do(rule: AlertingRule) -> None:
    page, _, anchor = rule.runbook.partition("#")
    text = (ROOT / page).read_text(encoding="utf-8")
    assert anchor in anchors(text)
    section = text.split(f"\n## {rule.name}\n", 1)[1].split("\n## ", 1)[0]
    assert [part for part in PARTS if part not in section] == []


def test_each_section_belongs_to_a_rule_and_each_rule_is_in_the_table() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "runbooks").glob("*.md")]
    assert sorted(name for text in pages for name in re.findall(r"^## (\w+)$", text, re.MULTILINE)) == sorted(RULES)
    assert f"SUCCESS: {len(RULES)} rules found" in MONITORING
    table = re.findall(r"^\| \[\w+\]\(runbooks/(\w+)\.md\) \| (.*) \| (.*) \|$", MONITORING, re.MULTILINE)
    listed = [
        (f"Waybill{name}", runbook, severity)
        for runbook, page, ticket in table
        for severity, names in (("page", page), ("ticket", ticket))
        for name in re.findall(r"\w+", names)
    ]
    assert sorted(listed) == sorted(
        (rule.name, re.findall(r"runbooks/(\w+)\.md#", rule.runbook)[0], rule.severity) for rule in rules()
    )


def test_each_command_that_a_runbook_says_is_one() -> None:
    known = {
        " ".join((name.split()[0], *path))
        for name, app in APPS.items()
        for path, _ in commands(typer.main.get_command(app))
    }
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "runbooks").glob("*.md"))
    said = re.findall(r"`((?:waybill|cloud-jobs|fleet-gateway|edge-agent)(?: [a-z][a-z-]*)+)", text)
    assert len(said) > 20
    assert sorted({one for one in said if one not in known}) == []


@EACH
def test_somebody_is_called_now_or_within_the_day(rule: AlertingRule) -> None:
    assert rule.severity in {"page", "ticket"}


def test_the_first_of_what_must_never_happen_is_an_increase() -> None:
    """A counter with a label that has no value before the first one goes from nothing to 1, which is no increase."""
    registries: list[CollectorRegistry] = [
        GatewayMetrics().registry,
        IngestMetrics().registry,
        RunMetrics("usage", 60).registry,
        WebhookMetrics(("ops",)).registry,
    ]
    at_the_start = {
        sample.name for registry in registries for metric in registry.collect() for sample in metric.samples
    }
    needed = {
        selector.metric
        for rule in rules()
        for part in re.findall(r"increase\(([^)]*)\)", rule.expr)
        for selector in named_in(part).selectors
        if selector.metric.startswith(("waybill_gateway_", "waybill_ingest_", "waybill_jobs_", "waybill_webhooks_"))
    }
    assert needed - at_the_start == set()


def test_the_targets_of_a_region_have_its_label() -> None:
    text = SCRAPE.read_text(encoding="utf-8")
    jobs = dict(re.findall(r"- job_name: waybill-(\w+)\n(.*?)(?=\n  #|\Z)", text, re.DOTALL))
    regional = {job for job, rest in jobs.items() if rest.count("targets:") == rest.count("labels: {region: ")}
    assert regional == REGIONAL
    assert set(jobs) == {"gateway", "access", "alerts", "canary", "replication", "centre", "jobs", "webhooks"}
