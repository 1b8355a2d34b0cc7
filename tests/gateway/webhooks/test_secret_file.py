"""The secrets of a webhook: what is wrong with their file is known without a request."""

from __future__ import annotations

from pathlib import Path

from gateway.webhooks.secret_file import SecretFile
from tests.gateway.webhooks.hook_server import SECRET_TEXT


def test_a_file_that_goes_and_comes_back_is_a_problem_for_as_long_as_it_is_away(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET_TEXT)
    secret = SecretFile(path)
    before = secret()
    path.unlink()
    secret.look()
    assert "the former secret is used" in secret.problem
    assert secret() == before
    path.write_text(SECRET_TEXT)
    secret.look()
    assert secret.problem == ""
