"""Settings of whoever delivers: what is refused, and what is a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.webhooks.checks import problems, warnings
from gateway.webhooks.config import NotifierSettings, WebhookSettings
from settings import SettingsError, parse
from tests.gateway.webhooks.hook_server import SECRET_TEXT

TEXT = """
tenants = ["acme"]
regions = ["eu"]
state_file = "{folder}/state.sqlite"
{more}

[pulsar]
service_url = "pulsar://127.0.0.1:6650"

[rules]
unsigned = true

[webhooks.ops]
url = "http://127.0.0.1:9/hook"
secret_file = "{folder}/secret"
networks = ["127.0.0.0/8"]
accounts = ["*"]
"""


def settings(folder: Path, more: str = "") -> NotifierSettings:
    return parse(NotifierSettings, TEXT.format(folder=folder, more=more), "notifier.toml")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://example.com/", "write https://"),
        ("https://", "write https://"),
        ("https://user:pass@example.com/", "no user"),
        ("https://example.com/#x", "no #"),
        ("https://bücher.example/", "ASCII"),
        ("https://example.com/a b", "blanks"),
        ("https://example.com:0/", "port 0"),
        ("https://example.com:99999/", "ort"),
        ("https://example.com/\r\nX: y", "ASCII"),
    ],
)
def test_what_is_no_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match="url") as refused:
        WebhookSettings(url=url, secret_file=Path("x"), accounts=("acme",))
    assert said in str(refused.value)


def test_a_webhook_may_be_for_some_accounts() -> None:
    made = WebhookSettings(url="https://example.com/", secret_file=Path("x"), accounts=("acme", "beta-*"))
    assert [name for name in ("acme", "acme-2", "beta-", "beta-x", "beta") if made.is_for(name)] == [
        "acme",
        "beta-",
        "beta-x",
    ]


def test_what_lets_others_read_along_needs_the_word_insecure(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET_TEXT)
    found = problems(settings(tmp_path))
    assert [one.partition(":")[0] for one in found] == [
        "pulsar.service_url",
        "pulsar.access.token_file",
        "rules.unsigned",
        "webhooks.ops.url",
    ]
    assert problems(settings(tmp_path, "insecure = true")) == []


def test_files_that_are_not_there_are_named_and_no_secret_is_shown(tmp_path: Path) -> None:
    (one,) = problems(settings(tmp_path, "insecure = true"))
    assert one.startswith("webhooks.ops.secret_file: ")
    (tmp_path / "secret").write_text("hunter2")
    (one,) = problems(settings(tmp_path, "insecure = true"))
    assert "hunter2" not in one
    (tmp_path / "secret").write_text(SECRET_TEXT)
    (tmp_path / "secret").chmod(0o644)
    assert "chmod 600" in " ".join(warnings(settings(tmp_path, "insecure = true"), tmp_path / "notifier.toml"))


@pytest.mark.parametrize(
    ("more", "said"),
    [("webhoks = 1", "did you mean"), ("tenants = []", "tenants"), ("regions = ['a b']", "regions")],
)
def test_a_mistake_is_named(tmp_path: Path, more: str, said: str) -> None:
    text = TEXT.format(folder=tmp_path, more=more)
    if more.startswith(("tenants", "regions")):
        name = more.partition(" ")[0]
        text = "\n".join(line for line in text.splitlines() if not line.startswith(f'{name} = ["')) + "\n"
    with pytest.raises(SettingsError) as refused:
        parse(NotifierSettings, text, "notifier.toml")
    assert said in str(refused.value)


def test_rules_are_signed_or_said_not_to_be(tmp_path: Path) -> None:
    text = TEXT.format(folder=tmp_path, more="")
    with pytest.raises(SettingsError, match="operators"):
        parse(NotifierSettings, text.replace("unsigned = true", ""), "notifier.toml")


@pytest.mark.parametrize(
    "url", ["https://169.254.169.254/", "https://10.0.0.1/", "https://[::1]:8443/x", "http://0.0.0.0/"]
)
def test_an_address_that_is_not_public_is_refused_unless_its_network_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="no public address"):
        WebhookSettings(url=url, secret_file=Path("x"), accounts=("acme",))
    networks = ("169.254.169.254/32", "10.0.0.0/8", "::1/128", "0.0.0.0/32")
    assert WebhookSettings(url=url, secret_file=Path("x"), accounts=("acme",), networks=networks).url == url
