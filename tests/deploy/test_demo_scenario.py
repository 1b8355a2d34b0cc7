"""A demo that ends early leaves nothing behind that would end its process in another way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.demo.plan import DemoError, DemoSettings, plan_demo
from deploy.demo.scenario import DemoScenario


@pytest.mark.parametrize("ended_by", [DemoError("a server failed"), KeyboardInterrupt()])
def test_alerts_are_read_no_more_however_the_demo_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_by: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise ended_by

    monkeypatch.setattr("deploy.demo.scenario.write_folder", fail)
    closed: list[bool] = []
    watch: Any = SimpleNamespace(alerts={}, close=lambda: closed.append(True))
    stack: Any = SimpleNamespace(folder=tmp_path)
    scenario = DemoScenario(stack, plan_demo(DemoSettings(vehicles=4)), print, watch=watch)
    with pytest.raises(type(ended_by)):
        scenario.run()
    assert closed == [True]
