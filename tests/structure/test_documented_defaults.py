"""The default and the bounds that a page names of a setting are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.structure.test_documented import PAGES, SETTINGS, _models

HEADER = re.compile(r"^\| (?:setting|`\[(\w+)\]`) \| default \|(.*)$")
NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")
LIMITS = ("gt", "ge", "lt", "le")
BOUNDS = re.compile(rf"^(> )?({NUMBER.pattern}) to ({NUMBER.pattern})$")


class Row(NamedTuple):
    """One row of a table of settings."""

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
    """Each setting by its path."""
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
