"""The secrets of a webhook: what is wrong with their file is known without a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import SecretUnusable
from gateway.webhooks.posting import SecretFile
from tests.gateway.webhooks.hook_server import write_secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_use_holds_no_secret(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    path.chmod(mode)
    with pytest.raises(SecretUnusable, match=f"mode {mode:03o}: chmod 600"):
        SecretFile(path)
    path.chmod(0o400)
    assert len(SecretFile(path)()) == 1
