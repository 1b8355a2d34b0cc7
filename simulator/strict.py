"""The base of every typed model here: frozen, and a misspelt key is an error that names the right one."""

from difflib import get_close_matches
from typing import Any

from pydantic import model_validator

from settings import Settings


class Strict(Settings):
    """Settings that suggest the nearest known key also where they are read from JSON or made by hand."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for key in given:
                if key not in cls.model_fields:
                    near = get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise ValueError(f"unknown key {key!r} in {cls.__name__}{hint}")
        return given
