"""A rule between two keys is asked although a third one is wrong, and says nothing of what was not said."""

from __future__ import annotations

from typing import Self

import pytest
from pydantic import Field, model_validator

from waybill.settings import Settings, SettingsError, parse


class Wait(Settings):
    first_s: float = 1
    most_s: float = 300
    attempts: int = Field(default=3, ge=1)

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.first_s > self.most_s:
            raise ValueError(f"first_s is {self.first_s:g}, and most_s {self.most_s:g}")
        return self


class Hook(Settings):
    name: str
    late_s: float = 30
    old_s: float = 300
    wait: Wait | None = None

    @model_validator(mode="after")
    def _is_late_before_it_is_old(self) -> Self:
        if self.late_s > self.old_s:
            raise ValueError(f"late_s is {self.late_s:g}, and old_s {self.old_s:g}")
        return self

    @model_validator(mode="after")
    def _has_a_short_name(self) -> Self:
        if len(self.name) > 5:
            raise ValueError("name: is too long")
        return self


def problems(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(Hook, text, "hook.toml")
    return caught.value.problems


def test_a_rule_is_asked_although_other_keys_are_missing_wrong_or_unknown() -> None:
    late = "late_s is 400, and old_s 300"
    assert problems("late_s = 400") == ["name: Field required", late]
    assert problems('late_s = 400\nname = "long name"\nmore = 1')[1:] == [late, "name: is too long"]
    assert problems("late_s = 400\nname = 7")[1:] == [late]


def test_rules_of_a_table_inside_are_asked_too_and_each_fault_is_said_once() -> None:
    found = problems('late_s = 400\nname = "n"\n[wait]\nfirst_s = 900\nattempts = 0')
    assert found == [
        "wait.attempts: Input should be greater than or equal to 1",
        "wait: first_s is 900, and most_s 300",
        "late_s is 400, and old_s 300",
    ]
    assert problems('late_s = 400\nname = "n"\n[wait]\nfirst_s = 900') == [
        "wait: first_s is 900, and most_s 300",
        "late_s is 400, and old_s 300",
    ]
