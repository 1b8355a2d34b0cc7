"""What tests of the notifier share: a webhook, and a notifier that posts to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.webhooks.hook_server import HookServer, hook_server
from tests.gateway.webhooks.notifier_world import World


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, server: HookServer) -> Iterator[World]:
    made = World(tmp_path, {"ops": server.settings(tmp_path)})
    yield made
    made.stack.close()
