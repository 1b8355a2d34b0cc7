"""`cloud-jobs close`: what it has in common with the clerk's command."""

from typer.testing import CliRunner

from cloud_jobs.__main__ import app


def test_no_closing_of_a_clerk_leaves_out_the_records() -> None:
    words = ["close", "--config", "cloud.toml", "--period", "2026-03", "--usage-only"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "No such option" in result.stderr) == (2, True)
