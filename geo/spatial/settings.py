"""The base of this package's settings: frozen, typed, and strict about names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Settings(BaseModel):
    """Frozen settings. An unknown key is an error (pydantic's `ValidationError`) that names the nearest right one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    near = get_close_matches(str(key), list(cls.model_fields), n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise ValueError(f"unknown setting {key!r}{hint}")
        return values
