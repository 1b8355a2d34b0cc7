"""What a runbook says to look at in a status is a row of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway.alerts.status import AlertsStatus
from gateway.webhooks.status import NotifierStatus

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
OF_STATUS = re.compile(
    r"^\*\*See\.\*\* `(fleet-gateway|waybill) alerts status[^`]*`[^:.]*: (?P<rows>[^.]*)", re.MULTILINE
)
ROW = re.compile(r"\*(?P<emphasised>[a-z ]+)\*|`(?P<quoted>[a-z][a-z ]*[a-z])`")


@pytest.mark.parametrize(("page", "status"), [("alerts.md", AlertsStatus), ("webhooks.md", NotifierStatus)])
def test_rows_that_a_runbook_names_are_there(page: str, status: type[BaseModel]) -> None:
    rows = {name.replace("_", " ") for name in status.model_fields}
    named = [
        match["emphasised"] or match["quoted"]
        for line in OF_STATUS.finditer((RUNBOOKS / page).read_text(encoding="utf-8"))
        for match in ROW.finditer(line["rows"])
    ]
    assert named
    # `state standby` is a row and what stands in it
    assert [one for one in named if one not in rows and one.split(" ")[0] not in rows] == []
