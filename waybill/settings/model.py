"""The base of all settings, and the error for those that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from waybill.settings.local_path import local_path
from waybill.settings.one_line import printable


class Settings(BaseModel):
    """A frozen model whose fields are the only keys there are; numbers are finite, and paths are of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _paths_of_this_machine(cls, value: Any) -> Any:
        """Every path of every table, so that no program uses one as it stands that another one expands."""
        return Path(local_path(str(value))) if isinstance(value, Path) else value


class SettingsError(Exception):
    """Settings that cannot be used. `source` is the file; `problems` has one line for each mistake, key first."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = problems

    @property
    def lines(self) -> list[str]:
        """One line for each mistake, the file first: what a command says of it."""
        return [printable(f"{self.source}: {problem}") for problem in self.problems]
