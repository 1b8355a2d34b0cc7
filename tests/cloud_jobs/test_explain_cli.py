"""`waybill bill explain`: what is typed wrong ends with a message, before anything is opened."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cloud_jobs.bill_cli import explain


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--hour", "soon", "is not an hour; write it as 2026-03-05T06"),
        # its offset leads out of the calendar
        ("--hour", "0001-01-01T00:00+14:00", "is not an hour; write it as 2026-03-05T06"),
        ("--hour", "9999-12-31T23:00-14:00", "is not an hour; write it as 2026-03-05T06"),
        ("--device", "van-1", "is not a device; write TENANT/DEVICE"),
    ],
)
def test_what_is_typed_wrong_is_named(tmp_path: Path, option: str, text: str, message: str) -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(explain)
    result = CliRunner().invoke(app, ["WB-EU-00000001", "1", "--lake", str(tmp_path), option, text])
    assert (result.exit_code, message in " ".join(result.output.split())) == (2, True)
