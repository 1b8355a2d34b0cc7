"""From TOML to settings, with an answer to every mistake: where it is, what is wrong, and the nearest right word."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from settings.model import Settings, SettingsError

Made = TypeVar("Made", bound=Settings)


def load(model: type[Made], path: Path) -> Made:
    """The settings in a TOML file. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(str(path), [f"cannot be read: {error}"]) from error
    return parse(model, text, str(path))


def parse(model: type[Made], text: str, source: str) -> Made:
    """The settings in a TOML text; `source` names it in errors. Raises SettingsError."""
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(source, [f"is no TOML: {error}"]) from error
    except RecursionError as error:
        raise SettingsError(source, ["is nested too deeply"]) from error
    except ValidationError as error:
        raise SettingsError(source, [_problem(model, detail) for detail in error.errors()]) from error


def _problem(model: type[BaseModel], detail: ErrorDetails) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] != "extra_forbidden":
        return f"{where}: {detail['msg']}" if where else str(detail["msg"])
    known = _keys_at(model, detail["loc"][:-1])
    nearest = get_close_matches(str(detail["loc"][-1]), known, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(sorted(known))}"
    return f"{where}: no such setting; {advice}"


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_inside(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _model_inside(part))), None)
