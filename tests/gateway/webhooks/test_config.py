"""Settings of whoever delivers: what is refused, and what is a warning."""

import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gateway.errors import SecretUnusable
from gateway.webhooks.config import NotifierSettings, WebhookSettings
from gateway.webhooks.posting import read_secrets
from gateway.webhooks.service import alert_topics, problems, warnings
from gateway.webhooks.status import NotifierStatus, WebhookStatus, notifier_table
from tests.gateway.webhooks.hook_server import write_secret
from waybill.settings import parse

OPS = WebhookStatus(name="ops")
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


def test_what_lets_others_read_along_needs_the_word_insecure(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret")
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
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text("hunter2")
    (one,) = problems(settings(tmp_path, "insecure = true"))
    assert "hunter2" not in one
    write_secret(tmp_path / "secret")
    (tmp_path / "secret").chmod(0o644)
    (one,) = problems(settings(tmp_path, "insecure = true"))
    assert one.endswith("others may use it, by its mode 644: chmod 600")


@pytest.mark.parametrize(
    "url", ["https://169.254.169.254/", "https://10.0.0.1/", "https://[::1]:8443/x", "http://0.0.0.0/"]
)
def test_an_address_that_is_not_public_is_refused_unless_its_network_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="not a public address"):
        WebhookSettings(url=url, secret_file=Path("x"), accounts=("acme",))
    networks = ("169.254.169.254/32", "10.0.0.0/8", "::1/128", "0.0.0.0/32")
    assert WebhookSettings(url=url, secret_file=Path("x"), accounts=("acme",), networks=networks).url == url


def test_a_notifier_and_its_standby_wait_for_one_topic_however_their_settings_order_tenants(tmp_path: Path) -> None:
    text = TEXT.format(folder=tmp_path, more="")
    given = [
        parse(NotifierSettings, text.replace('["acme"]', tenants), "notifier.toml")
        for tenants in ('["globex", "acme"]', '["acme", "globex"]')
    ]
    assert {alert_topics(one)[0].name for one in given} == {"persistent://acme/events/verdicts"}
    assert {one.name for one in alert_topics(given[0])} == {one.name for one in alert_topics(given[1])}


def test_a_notifier_that_delivers_to_nobody_says_so(tmp_path: Path) -> None:
    made = settings(tmp_path, "insecure = true").model_copy(update={"webhooks": {}})
    assert "webhooks: no webhook is configured, so no alert is delivered" in warnings(made, tmp_path / "n.toml", 0.0)
    for status, said in (
        (NotifierStatus(pid=1, started_at="", rules=1), "none: the settings have no webhook"),
        (NotifierStatus(pid=1, started_at="", rules_current=True, webhooks=(OPS,)), "none: no rule was published"),
        (NotifierStatus(pid=1, started_at="", rules_current=True, rules=1, webhooks=(OPS,)), "ops"),
    ):
        out = StringIO()
        Console(file=out, width=100).print(notifier_table(status))
        (row,) = [line for line in out.getvalue().splitlines() if "delivers to" in line]
        assert said in row


def test_a_file_that_is_named_without_a_folder_is_said_to_be_taken_from_where_the_command_runs(tmp_path: Path) -> None:
    text = TEXT.format(folder=tmp_path, more="insecure = true").replace(f"{tmp_path}/secret", "no-such.secret")
    (said,) = [one for one in problems(parse(NotifierSettings, text, "notifier.toml")) if "secret_file" in one]
    assert f"relative to the current folder {Path.cwd()}" in said


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_use_holds_no_secret(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    path.chmod(mode)
    with pytest.raises(SecretUnusable, match=f"mode {mode:03o}: chmod 600"):
        read_secrets(path)
    path.chmod(0o400)
    assert len(read_secrets(path)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a file that another user reads by its group")
def test_a_file_of_root_may_be_read_by_its_group_as_a_secret_in_a_pod_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    path.chmod(0o440)
    monkeypatch.setattr("os.geteuid", lambda: 10_001)
    assert len(read_secrets(path)) == 1
    path.chmod(0o460)
    with pytest.raises(SecretUnusable, match="mode 460"):
        read_secrets(path)
