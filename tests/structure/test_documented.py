"""What has no page fails: each setting, command, option and metric is named in `docs/`."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from cloud_jobs.__main__ import app as cloud_jobs
from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.config import CloudSettings
from edge_agent.cli import app as edge_agent
from edge_agent.config import AgentSettings
from gateway.access.config import AccessSettings
from gateway.alerts.config import AlertSettings
from gateway.canary.config import CanarySettings
from gateway.cli import app as gateway
from gateway.config import GatewaySettings
from gateway.webhooks.config import NotifierSettings
from simulator.__main__ import app as simulator
from tests.structure.metric_registries import REGISTRIES, by_program, every_metric
from tests.structure.sources import PACKAGES
from waybill.commands import SUBCOMMANDS, command_line
from waybill.identity.operator_settings import OperatorSettings
from waybill.record import RefusalReason

APPS = {"cloud-jobs": cloud_jobs, "edge-agent": edge_agent, "fleet-gateway": gateway, "fleet-simulator": simulator} | {
    f"waybill {name}": command_line(SUBCOMMANDS, [name], "Waybill.") for name in SUBCOMMANDS
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", APPS)
def test_what_stands_in_brackets_is_shown(name: str) -> None:
    for path, command in commands(typer.main.get_command(APPS[name])):
        shown = words(CliRunner().invoke(APPS[name], [*path, "--help"], terminal_width=200).output)
        texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
        for bracketed in (found for text in texts for found in re.findall(r"\[[^\]]*\]", text)):
            assert words(bracketed) in shown, f"{name} {' '.join(path)} loses {bracketed}"


@pytest.mark.parametrize("name", APPS)
def test_the_help_of_each_command_has_an_example_with_its_own_options(name: str) -> None:
    program, _, only = name.partition(" ")
    for path, command in commands(typer.main.get_command(APPS[name])):
        if getattr(command, "commands", {}) or (only and path[:1] != (only,)):
            continue
        spoken = " ".join((program, *path))
        example = re.search(rf"Example: {re.escape(spoken)}(?=\s|$)(.*)", words(command.help or ""))
        assert example, f"{spoken} --help has no example"
        own = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"(?<=\s)--?\w[\w-]*", example[1])) <= own, spoken
        required = {parameter.opts[-1] for parameter in command.params if parameter.required and parameter.opts}
        assert {option for option in required if option.startswith("--")} <= set(example[1].split()), spoken


@pytest.mark.parametrize("name", ["ingest", "usage", "geofence", "proximity", "maintain", "status"])
def test_the_help_of_a_command_on_the_lake_says_what_each_exit_status_is_for(name: str) -> None:
    shown = words(CliRunner().invoke(cloud_jobs, [name, "--help"], terminal_width=200).output)
    assert [
        text for text in ("Exit status: 0", "1 when", "75 when", "78 for wrong settings") if text not in shown
    ] == []


@pytest.mark.parametrize("name", ["waybill", "edge-agent", "fleet-gateway", "cloud-jobs", "fleet-simulator"])
def test_a_program_says_its_version_and_without_arguments_what_it_can_do(name: str) -> None:
    app = APPS.get(name) or command_line(SUBCOMMANDS, [], "Waybill.")
    assert CliRunner().invoke(app, ["--version"]).output == f"{name} {version('fleet-waybill')}\n"
    assert "Commands:" in CliRunner().invoke(app, []).output


ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
EVERYTHING = "\n".join(PAGES.values())
# The settings of each program, and the pages that may explain them.
SETTINGS: dict[type[BaseModel], tuple[str, ...]] = {
    AgentSettings: ("edge-agent.md", "mappings.md"),
    GatewaySettings: ("gateway.md", "access.md"),
    AccessSettings: ("access.md",),
    AlertSettings: ("alerts.md",),
    CanarySettings: ("canaries.md", "edge-agent.md", "centre.md", "alerts.md"),
    NotifierSettings: ("alerts.md",),
    OperatorSettings: ("access.md",),
    CloudSettings: ("alerts.md", "centre.md", "console-settings.md", "ingest.md", "privacy.md", "spatial-jobs.md"),
}
TYPERS_OWN = {"--install-completion", "--show-completion"}
# As pages, docstrings and pyproject.toml name them.
EXTRAS = re.compile(r"(?:\bwaybill\[|\bextra `)([\w, -]+)[\]`]")
METRIC = re.compile(r"\bwaybill_(?:" + "|".join(REGISTRIES) + r")_\w+")
# Every page that a reader finds from the README, itself or through one of these.
LINK = re.compile(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)")


def settings_of(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name
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


@pytest.mark.parametrize("kind", MODEL_OF)
def test_each_key_of_a_contract_is_explained(kind: str) -> None:
    text = PAGES["contract-keys.md"] + PAGES["contracts.md"]
    parts = re.findall(r"^```toml$(.*?)^```$|`([^`\n]+)`", text, re.MULTILINE | re.DOTALL)
    named = {word for part in parts for word in re.split(r"\W+", "".join(part))}
    assert sorted(set(settings_of(MODEL_OF[kind])) - named) == []


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
        path
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml"} and "node_modules" not in path.parts
    ]
    named = {
        (str(path.relative_to(ROOT)), extra.strip())
        for path in files
        for listed in EXTRAS.findall(path.read_text(encoding="utf-8"))
        for extra in listed.split(",")
    }
    assert {extra for _, extra in named} >= {"edge", "gateway", "cloud"}, "they are found"
    assert sorted(one for one in named if one[1] not in extras) == []


HEADER = re.compile(r"^\| (?:setting|`\[(\w+)\]`) \| default \|(.*)$")
NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")
LIMITS = ("gt", "ge", "lt", "le")
BOUNDS = re.compile(rf"^(> )?({NUMBER.pattern}) to ({NUMBER.pattern})$")


class Row(NamedTuple):
    page: str
    names: tuple[str, ...]
    defaults: tuple[str, ...]
    bounds: str


def tables(page: str) -> Iterator[list[Row]]:
    """The tables of settings of a page, each with the rows whose defaults stand one for each setting."""
    lines = iter(PAGES[page].splitlines())
    for line in lines:
        if (header := HEADER.match(line)) is None:
            continue
        has_bounds = header[2].strip().startswith(("range", "bounds"))
        section: str | None = f"{header[1]}." if header[1] else ""
        rows: list[Row] = []
        next(lines)
        for row in lines:
            if not row.startswith("|"):
                break
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
            if cells[0].startswith("**"):
                found = re.findall(r"\[([\w.]+)\]", cells[0])
                # of several sections in one it is not said whose default it is
                section = f"{found[0]}." if len(found) == 1 else None
                continue
            if section is None:
                continue
            names = tuple(
                section + name.removeprefix(section).replace("NAME.", "")
                for name in re.findall(r"`([\w.]+)`", cells[0])
            )
            # a comma between digits is of one number
            defaults = tuple(re.split(r", (?=\S)", cells[1])) if len(names) > 1 else (cells[1],)
            if names and len(names) == len(defaults):
                rows.append(Row(page, names, defaults, cells[2] if has_bounds else ""))
        yield rows


def fields(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield before + name, field
        for inner in _models(field.annotation):
            yield from fields(inner, f"{before}{name}.")


def number(text: str) -> float | None:
    plain = text.strip("`")
    return float(plain.replace(",", "")) if NUMBER.fullmatch(plain) else None


def known(rows: list[Row]) -> dict[str, FieldInfo]:
    """The settings of the program whose table it is: the one that has most of them."""
    found = [dict(fields(model)) for model, pages in SETTINGS.items() if rows[0].page in pages]
    return max(found, key=lambda one: sum(name in one for row in rows for name in row.names))


def faults(row: Row, settings: dict[str, FieldInfo]) -> Iterator[str]:
    for name, said in zip(row.names, row.defaults, strict=True):
        # a name of a list's section is shortened: `times.read_s` of `webhooks.times.read_s`
        paths = [path for path in settings if path == name or path.endswith("." + name)]
        if len(paths) != 1 and name not in paths:
            continue
        field = settings[name if name in paths else paths[0]]
        default: Any = field.default
        if isinstance(default, bool):
            if said in {"true", "false"} and said != str(default).lower():
                yield f"{row.page}: {name} is {said}, in the code {default}"
        elif isinstance(default, int | float) and (said_number := number(said)) is not None and said_number != default:
            yield f"{row.page}: {name} is {said}, in the code {default}"
        if len(row.names) == 1 and (bounds := BOUNDS.match(row.bounds)):
            wanted = {"gt" if bounds[1] else "ge": number(bounds[2]), "le": number(bounds[3])}
            ours = {
                name: value
                for one in field.metadata
                for name in LIMITS
                if (value := getattr(one, name, None)) is not None
            }
            # one that follows from other settings is a check of its own
            if any(wanted.get(name) != value for name, value in ours.items()):
                yield f"{row.page}: {name} is bounded by {row.bounds}, in the code {ours}"


@pytest.mark.parametrize("page", sorted({page for pages in SETTINGS.values() for page in pages}))
def test_each_default_and_bound_that_a_page_names_is_that_of_the_code(page: str) -> None:
    assert [fault for rows in tables(page) for row in rows for fault in faults(row, known(rows))] == []


OTHER_UNITS = {"bits", "days", "hours", "kb", "kib", "mb", "mib", "milliseconds", "minutes", "ms", "percent", "us"}
GROWS_WITH_THE_FLEET = {"account", "device", "fence", "payer", "vehicle"}


def test_each_name_begins_with_its_program_and_ends_in_its_unit() -> None:
    wrong = [
        metric.name
        for program, metrics in by_program().items()
        for metric in metrics
        if not metric.name.startswith(f"waybill_{program}_")
        or OTHER_UNITS & set(metric.name.split("_"))
        or metric.name.endswith("_total") != (metric.type == "counter")
        or not metric.text
    ]
    assert wrong == []
    assert len(every_metric()) > 60


def test_no_two_processes_export_one_name() -> None:
    names = Counter(metric.name for metrics in by_program().values() for metric in metrics)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_label_grows_with_the_fleet() -> None:
    assert [name for name, metric in every_metric().items() if GROWS_WITH_THE_FLEET & set(metric.labels)] == []
