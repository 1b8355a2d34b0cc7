"""Commands for what no webhook took, as far as they need no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.webhooks.cli import app
from gateway.webhooks.signed_post import SignedPost
from gateway.webhooks.undelivered_cli import posted
from gateway.webhooks.undelivered_message import UndeliveredMessage
from tests.gateway.webhooks.hook_server import hook_server


@pytest.mark.parametrize("command", ["list", "retry", "discard"])
def test_settings_that_are_not_there_are_78(tmp_path: Path, command: str) -> None:
    words = ["undelivered", command, "--config", str(tmp_path / "none.toml"), "--webhook", "ops"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 78
    assert "none.toml" in done.output


def test_nothing_is_discarded_that_is_not_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["undelivered", "discard", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert "--webhook or --key" in done.output


def test_what_is_sent_again_goes_to_no_webhook_of_another_account(tmp_path: Path) -> None:
    with hook_server() as server:
        settings = server.settings(tmp_path, accounts=["acme"])
        webhooks, posts = {"ops": settings}, {"ops": SignedPost(settings)}
        plain: dict[str, Any] = {
            "key": "k",
            "webhook": "ops",
            "tenant": "acme",
            "reason": "exhausted",
            "at_ms": 1,
            "body": "{}",
        }
        of_others = UndeliveredMessage(rules=("acme/all", "umbrella/x"), **plain)
        assert posted(webhooks, posts, of_others) == (False, "the webhook is not for account umbrella")
        assert posted(webhooks, posts, of_others.model_copy(update={"webhook": "gone"}))[0] is False
        assert server.requests == []
        assert posted(webhooks, posts, UndeliveredMessage(rules=("acme/all",), **plain))[0]
        assert len(server.requests) == 1
