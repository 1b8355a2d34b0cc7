"""From TOML to settings; every mistake is reported with its place, its reason and the nearest right key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import ErrorDetails

from waybill.settings.files import MAX_TOML_BYTES, file_fault, local_path, open_file, parse_toml
from waybill.settings.text import nearest, one_line, printable

# The base of all settings, and its error.


class Settings(BaseModel):
    """A frozen model: unknown keys are errors, numbers are finite, and paths are local."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _paths_of_this_machine(cls, value: Any) -> Any:
        """Expands every path in the same way for all programs."""
        return Path(local_path(str(value))) if isinstance(value, Path) else value


class SettingsError(Exception):
    """Settings that cannot be used. `source` is the file; `problems` has one line for each mistake, key first."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = problems

    @property
    def lines(self) -> list[str]:
        """One line for each mistake, the file first."""
        return [printable(f"{self.source}: {problem}") for problem in self.problems]


Made = TypeVar("Made", bound=Settings)

MAX_PROBLEMS = 50
MAX_PROBLEM_CHARACTERS = 300
SIMILAR = 0.7
"""The least similarity of a suggested key: one wrong or missing letter in four."""


def load(model: type[Made], path: Path) -> Made:
    """Raises SettingsError."""
    return parse(model, read_text(path), str(path))


KINDS: Final[Mapping[str, frozenset[str]]] = {
    "edge-agent run": frozenset({"device", "uplinks"}),
    "fleet-gateway run": frozenset({"name", "region", "mqtt", "pulsar"}),
    "fleet-gateway alerts run": frozenset({"name", "region", "fences", "pulsar"}),
    "fleet-gateway access run": frozenset({"region", "registry", "broker"}),
    "cloud-jobs": frozenset({"lake", "checkpoints", "clusters"}),
    "waybill device": frozenset({"service_url", "admin_url", "regions"}),
    "waybill alerts": frozenset({"rules", "state_file", "pulsar"}),
    "waybill canary run": frozenset({"script", "agent", "regional"}),
    "waybill topology": frozenset({"centre", "clusters", "regions"}),
}
"""The programs, and the keys by which a person knows the settings file of each."""
_MAX_FILES: Final = 200
_MAX_NAMED: Final = 3


def other_kind(model: type[BaseModel], tables: Mapping[str, Any], source: str) -> str:
    """Whose settings a file has, and the right file beside it; "" if it does not look like those of another program."""
    keys, own = {*tables}, {*model.model_fields}
    found = [name for name, kind in KINDS.items() if kind <= keys and not kind <= own]
    wanted = [(name, kind) for name, kind in KINDS.items() if kind <= own]
    if not found or not wanted or any(kind <= keys for _, kind in wanted):
        return ""
    name, kind = wanted[0]
    right = [*islice(_files_of_kind(Path(source).parent, kind), _MAX_NAMED)]
    there = f"; those of `{name}` are in {', '.join(right)}" if right else ""
    return f"this file has the settings of `{found[0]}`, not of `{name}`{there}"


def _files_of_kind(folder: Path, kind: frozenset[str]) -> Iterator[str]:
    for file in sorted(islice(folder.glob("*.toml"), _MAX_FILES)):
        try:
            keys = {*parse_toml(read_text(file))}
        except (SettingsError, ValueError):
            continue
        if kind <= keys:
            yield str(file)


def read_text(path: Path) -> str:
    """The text of a TOML file for `parse`, which refuses a text that is too long. Raises SettingsError."""
    try:
        with open_file(path) as file:
            # One byte more than is allowed shows that there are too many.
            return file.read(MAX_TOML_BYTES + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(str(path), [f"cannot be read: {file_fault(error)}"]) from error


def parse(model: type[Made], text: str, source: str) -> Made:
    """The settings of a TOML text; `source` names it in errors. Raises SettingsError."""
    return validate(model, parse_tables(text, source), source)


def parse_tables(text: str, source: str) -> dict[str, Any]:
    """The tables of a TOML text; `source` names it in errors. Raises SettingsError."""
    try:
        return parse_toml(text)
    except ValueError as error:
        raise SettingsError(source, [f"is not valid TOML: {error}"[:MAX_PROBLEM_CHARACTERS]]) from error


def validate(model: type[Made], tables: dict[str, Any], source: str) -> Made:
    """The settings of parsed tables; `source` names them in errors. Raises SettingsError."""
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        if other := other_kind(model, tables, source):
            raise SettingsError(source, [other]) from error
        details = without_consequences(error.errors(include_url=False))[:MAX_PROBLEMS]
        problems = [problem_text(model, detail) for detail in details]
        raise SettingsError(source, [one[:MAX_PROBLEM_CHARACTERS] for one in problems]) from error


def without_consequences(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leaves out errors that only follow from others: a list that is too short because one of its items is wrong, and a
    missing key that is misspelled.
    """
    around = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    missing: dict[Any, list[str]] = {}
    for detail in details:
        if detail["type"] == "missing":
            missing.setdefault(detail["loc"][:-1], []).append(str(detail["loc"][-1]))
    misspelled = {
        (*here, near)
        for here, wrong in _unknown_keys(details)
        if (near := nearest(wrong, missing.get(here, ()), SIMILAR))
    }
    return [
        detail
        for detail in details
        if not (detail["type"] == "too_short" and detail["loc"] in around)
        and not (detail["type"] == "missing" and detail["loc"] in misspelled)
    ]


def _unknown_keys(details: list[ErrorDetails]) -> Iterator[tuple[Any, str]]:
    """The place and name of each unknown key, up to a bound."""
    unknown = (detail["loc"] for detail in details if detail["type"] == "extra_forbidden")
    yield from ((location[:-1], str(location[-1])) for location in islice(unknown, MAX_PROBLEMS))


def problem_text(model: type[BaseModel], detail: ErrorDetails, called: str = "setting") -> str:
    """The problem at one place of a model, and the nearest right key; `called`: the word for a key."""
    where = one_line(".".join(str(part) for part in detail["loc"]))
    if detail["type"] != "extra_forbidden":
        fault = _fault_of_value(where, detail)
        return f"{where}: {fault}" if where else fault
    here, wrong = model_at(model, detail["loc"][:-1]), str(detail["loc"][-1])
    near = _nearest_key(here, wrong)
    advice = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(_keys(here)))}"
    return f"{where}: no such {called}; {advice}"


_WORD_OF: Final[dict[type, str]] = {str: "a text", bool: "true or false", list: "a list", dict: "a table"}


def _fault_of_value(where: str, detail: ErrorDetails) -> str:
    given = detail["input"]
    if detail["type"] in {"tuple_type", "list_type"}:
        if isinstance(given, dict):
            return f"is one table, and a list of them is needed: write [[{where.rpartition('.')[2]}]]"
        return f"is {_WORD_OF.get(type(given), 'a number')}, and a list is needed"
    if detail["type"] in {"model_type", "dict_type"}:
        return f"is {_WORD_OF.get(type(given), 'a number')}, and a table is needed"
    return detail["msg"].removeprefix("Value error, ")


def _nearest_key(here: type[BaseModel], wrong: str) -> str:
    """A similar key of this table, or of a table in it. A word that begins otherwise is another one: cost, most."""
    tables = ((name, _model_inside(field.annotation)) for name, field in here.model_fields.items())
    below = [f"{name}.{key}" for name, table in tables if table is not None for key in _keys(table)]
    known = (one for one in (*_keys(here), *below) if one.rpartition(".")[2][:1] == wrong[:1].lower())
    return nearest(wrong, known, SIMILAR)


def _keys(model: type[BaseModel]) -> list[str]:
    """The keys of a table as a file has them: a key that is a word of Python has an alias."""
    return [field.alias or name for name, field in model.model_fields.items()]


def model_at(model: type[BaseModel], location: Iterable[int | str]) -> type[BaseModel]:
    """The model of a table at a place in one of `model`, or else the nearest around it."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_inside(model.model_fields[part].annotation) or model
    return model


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _model_inside(part))), None)
