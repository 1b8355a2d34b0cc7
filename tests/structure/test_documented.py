"""What has no page fails: each setting, command, option and metric is named in `docs/`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import typer
from pydantic import BaseModel

from cloud_jobs.config import CloudSettings
from deploy.canary.config import CanarySettings
from edge_agent.config import AgentSettings
from gateway.access.config import AccessSettings
from gateway.alerts.config import AlertSettings
from gateway.config import GatewaySettings
from gateway.webhooks.config import NotifierSettings
from tests.structure.metric_registries import REGISTRIES, every_metric
from tests.structure.sources import PACKAGES
from tests.structure.test_help import APPS, commands
from waybill.identity.operator_settings import OperatorSettings
from waybill.record import RefusalReason

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
EVERYTHING = "\n".join(PAGES.values())
# The settings of each program, and the pages that may explain them.
SETTINGS: dict[type[BaseModel], tuple[str, ...]] = {
    AgentSettings: ("edge-agent.md",),
    GatewaySettings: ("gateway.md", "access.md"),
    AccessSettings: ("access.md",),
    AlertSettings: ("alerts.md",),
    CanarySettings: ("canaries.md", "edge-agent.md", "centre.md", "alerts.md"),
    NotifierSettings: ("alerts.md",),
    OperatorSettings: ("access.md",),
    CloudSettings: ("alerts.md", "centre.md", "ingest.md", "privacy.md", "spatial-jobs.md"),
}
TYPERS_OWN = {"--install-completion", "--show-completion"}
# As pages, docstrings and pyproject.toml name them.
EXTRAS = re.compile(r"(?:\bwaybill\[|\bextra `)([\w, -]+)[\]`]")
METRIC = re.compile(r"\bwaybill_(?:" + "|".join(REGISTRIES) + r")_\w+")
# Every page that a reader finds from the README, itself or through one of these.
LINK = re.compile(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)")


def settings_of(model: type[BaseModel]) -> Iterator[str]:
    """The name of each setting, sections and what is in them."""
    for name, field in model.model_fields.items():
        yield name
        for inner in _models(field.annotation):
            yield from settings_of(inner)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


@pytest.mark.parametrize("model", SETTINGS, ids=lambda model: model.__name__)
def test_each_setting_is_explained(model: type[BaseModel]) -> None:
    text = "\n".join(PAGES[name] for name in SETTINGS[model])
    named = {word for quoted in re.findall(r"`([^`\n]+)`", text) for word in re.split(r"[^\w]+", quoted)}
    assert sorted(set(settings_of(model)) - named) == []


def test_the_page_with_the_settings_of_the_jobs_names_each_section_and_where_it_is() -> None:
    page = PAGES["ingest.md"]
    sections = [name for name, field in CloudSettings.model_fields.items() if [*_models(field.annotation)]]
    assert [name for name in sections if f"`[{name}]`" not in page and f"`{name}." not in page] == []


def test_the_reasons_of_a_refusal_are_all_and_only_those_of_the_code() -> None:
    _, _, table = PAGES["gateway.md"].partition("| reason | when |\n|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()
    reasons = [reason for row in rows for reason in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(reasons) == sorted(RefusalReason)


@pytest.mark.parametrize("name", APPS)
def test_each_command_and_option_is_explained(name: str) -> None:
    program, _, only = name.partition(" ")  # of `waybill` each command is an app, in which the others are names alone
    missing = []
    for path, command in commands(typer.main.get_command(APPS[name])):
        if only and path[:1] != (only,):
            continue
        spoken = " ".join((program, *path))
        if not getattr(command, "commands", {}) and not re.search(rf"\b{re.escape(spoken)}\b", EVERYTHING):
            missing.append(spoken)
        options = (option for parameter in command.params for option in parameter.opts if option.startswith("--"))
        missing += [
            f"{spoken} {option}"
            for option in options
            if option not in TYPERS_OWN and not re.search(rf"{re.escape(option)}(?![\w-])", EVERYTHING)
        ]
    assert missing == []


def test_each_metric_is_explained() -> None:
    assert sorted(metric for metric in every_metric() if f"`{metric}`" not in EVERYTHING) == []


def test_each_metric_that_a_page_names_is_exported() -> None:
    runbooks = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "runbooks").glob("*.md"))
    named = {name for name in METRIC.findall(EVERYTHING + runbooks) if not name.endswith("_")}
    exported = {sample for metric in every_metric().values() for sample in (metric.name, *metric.sample_names)}
    assert sorted(named - exported) == []


def test_each_page_is_found_from_the_readme() -> None:
    found, waiting = set(), [(ROOT / "README.md")]
    while waiting:
        page = waiting.pop()
        if page not in found:
            found.add(page)
            waiting += [(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert sorted(path.name for path in found if not path.is_file()) == []
    assert sorted(path.name for path in (ROOT / "docs").rglob("*.md") if path not in found) == []


def test_each_page_begins_with_what_it_is_for_and_an_example() -> None:
    late = []
    for name, text in PAGES.items():
        begin = "\n## ".join(text.split("\n## ", 2)[:2])
        if name not in {"glossary.md", "architecture.md", "limits.md"} and "```" not in begin:
            late.append(name)
    assert late == []


def anchors(text: str) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_link_into_a_page_names_one_of_its_headings() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    broken = []
    for path, text in pages.items():
        for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text):
            page = (path.parent / target).resolve() if target else path
            if anchor not in anchors(pages[page]):
                broken.append(f"{path.name}: {target}#{anchor}")
    assert broken == []


def test_each_extra_that_is_named_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    files += [
        path for folder in PACKAGES for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".toml"}
    ]
    named = {
        (str(path.relative_to(ROOT)), extra.strip())
        for path in files
        for listed in EXTRAS.findall(path.read_text(encoding="utf-8"))
        for extra in listed.split(",")
    }
    assert {extra for _, extra in named} >= {"edge", "gateway", "cloud"}, "they are found"
    assert sorted(one for one in named if one[1] not in extras) == []
