"""`waybill alerts undelivered`: what no webhook took, listed, sent again, and discarded."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.errors import alert_errors_as_messages
from waybill.identity.names import did_you_mean
from waybill.settings import load, one_line, printable_json

if TYPE_CHECKING:
    from gateway.webhooks.config import NotifierSettings, WebhookSettings
    from gateway.webhooks.posting import SignedPost
    from gateway.webhooks.undelivered import UndeliveredEntry, UndeliveredMessage

__all__ = ["app", "posted"]

MAX_LISTED: Final = 100_000
"""So many are shown; all that a topic has are looked at."""
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Messages that no webhook took.")
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The TOML file of settings.")]
WebhookOption = Annotated[str | None, typer.Option("--webhook", help="Only of this webhook.")]
MalformedOption = Annotated[
    bool, typer.Option("--malformed", help="What is in the topic and is no such message, listed as malformed.")
]
KeyOption = Annotated[str | None, typer.Option("--key", help="Only this one, by its idempotency key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(
    *, config: ConfigOption, webhook: WebhookOption = None, key: KeyOption = None, as_json: AsJson = False
) -> None:
    """Show the messages that no webhook took and that were not sent again since: when, to whom, and why not.

    The first 100,000 of them; where there are more, that is said (`is_all` with `--json`).

    Exit status: 0; 1 when the cluster does not give them, or another command has them; 2 for a webhook that neither the
    settings nor a message names; 78 for wrong settings.

    Example: waybill alerts undelivered list --config notifier.toml --webhook acme-ops
    """
    with alert_errors_as_messages("waybill alerts"):
        settings = _settings(config)
        # one more: whether there is any
        entries = _entries(settings, webhook, key)
        with closing(entries):
            found = [entry for _, entry in islice(entries, MAX_LISTED + 1)]
        is_all = len(found) <= MAX_LISTED
        if not found:
            _check_webhook(settings, webhook)
    if as_json:
        shown = [_facts(one) for one in found[:MAX_LISTED]]
        content = {"undelivered": shown, "is_all": is_all}
        sys.stdout.write(printable_json(content, indent=2) + "\n")
        return
    for entry in found[:MAX_LISTED]:
        typer.echo(one_line(_line(entry)))
    if not found:
        typer.echo("none")
    if not is_all:
        typer.echo(f"there are more than these {MAX_LISTED:,}: name a --webhook or a --key", err=True)


@app.command()
def retry(
    *, config: ConfigOption, webhook: WebhookOption = None, key: KeyOption = None, as_json: AsJson = False
) -> None:
    """Send them again, each once, with the same key and the same content. What is taken is taken off the list.

    Run it where the secrets of the webhooks are. What is not taken stays on the list.

    Exit status: 0 if each was taken, or there was none; 1 if one was not; 2 for a webhook that the settings do not
    have; 78 for wrong settings.

    Example: waybill alerts undelivered retry --config notifier.toml --webhook acme-ops
    """
    from gateway.webhooks.posting import SignedPost

    results: list[dict[str, Any]] = []
    with alert_errors_as_messages("waybill alerts"):
        settings = _settings(config)
        # to a webhook that is not there nothing can be sent
        _check_webhook(settings, webhook)
        posts = {name: SignedPost(one) for name, one in settings.webhooks.items()}
        for message, entry in _entries(settings, webhook, key):
            if message is None:
                continue
            is_taken, detail = posted(settings.webhooks, posts, message)
            # taken off only after its server took it: a command that is killed between posts it again
            if is_taken:
                entry.remove()
            results.append({"key": message.key, "webhook": message.webhook, "taken": is_taken, "detail": detail})
            if not as_json:
                said = "taken" if is_taken else "not taken"
                typer.echo(one_line(f"{message.webhook} {message.key}: {said}: {detail}"))
    if as_json:
        sys.stdout.write(printable_json({"retried": results}, indent=2) + "\n")
    elif not results:
        typer.echo("nothing to send again")
    if not all(one["taken"] for one in results):
        raise typer.Exit(1)


@app.command()
def discard(
    *,
    config: ConfigOption,
    webhook: WebhookOption = None,
    key: KeyOption = None,
    malformed: MalformedOption = False,
    as_json: AsJson = False,
) -> None:
    """Take messages off the list that are never to be sent: all of a webhook, one by its key, or what is malformed.

    They are gone for good.

    Exit status: 0; 1 when the cluster does not give them, or another command has them; 2 without `--webhook`, `--key`
    and `--malformed`, and for a webhook that neither the settings nor a message names; 78 for wrong settings.

    Example: waybill alerts undelivered discard --config notifier.toml --webhook acme-former
    """
    if malformed == (webhook is not None or key is not None):
        raise typer.BadParameter("say which: --webhook or --key, or --malformed alone")
    gone: list[dict[str, str]] = []
    with alert_errors_as_messages("waybill alerts"):
        settings = _settings(config)
        for message, entry in _entries(settings, webhook, key):
            if malformed == (message is not None):
                continue
            entry.remove()
            gone.append({"fault": entry.fault} if message is None else {"key": message.key, "webhook": message.webhook})
            if not as_json:
                what = _line(entry) if message is None else f"{message.webhook} {message.key}"
                typer.echo(one_line(f"{what}: discarded"))
        if not gone:
            _check_webhook(settings, webhook)
    if as_json:
        sys.stdout.write(printable_json({"discarded": gone}, indent=2) + "\n")
    elif not gone:
        typer.echo("nothing to discard")


def posted(
    webhooks: Mapping[str, WebhookSettings], posts: Mapping[str, SignedPost], message: UndeliveredMessage
) -> tuple[bool, str]:
    """Whether its webhook took a message, and what its server said, or why it was not asked."""
    post = posts.get(message.webhook)
    if post is None:
        return False, "the settings have no webhook of this name"
    # whoever may write to the topic names any rules, and any webhook: the settings say who may hear of whom
    if foreign := webhooks[message.webhook].foreign_accounts(message.rules):
        return False, f"the webhook is not for account {foreign[0]}"
    outcome = post(message.delivery)
    return outcome.is_delivered, outcome.detail


def _check_webhook(settings: NotifierSettings, webhook: str | None) -> None:
    """Raises BadParameter for a webhook that the settings do not have: messages of a former one may still be there."""
    if webhook is not None and webhook not in settings.webhooks:
        known, near = ", ".join(sorted(settings.webhooks)) or "none", did_you_mean(webhook, settings.webhooks)
        raise typer.BadParameter(f"the settings have no webhook {webhook!r}; {near}they name: {known}")


def _settings(config: Path) -> NotifierSettings:
    from gateway.webhooks.config import NotifierSettings

    return load(NotifierSettings, config)


def _entries(
    settings: NotifierSettings, webhook: str | None, key: str | None
) -> Generator[tuple[UndeliveredMessage | None, UndeliveredEntry], None, None]:
    """Of each tenant what there is, as long as its subscription is open."""
    from gateway.webhooks.tail import cluster_fault
    from gateway.webhooks.undelivered import open_undelivered, undelivered_entries
    from waybill.pulsar.pulsar_client import open_pulsar_client

    source = settings.pulsar
    opening = partial(open_pulsar_client, source.service_url, source.access, timeout_s=source.operation_timeout_s)
    for tenant in settings.tenants:
        with ExitStack() as stack:
            topic = settings.undelivered_topic(tenant)
            consumer = stack.enter_context(open_undelivered(opening, topic, partial(cluster_fault, source)))
            for found in undelivered_entries(consumer):
                entry = found.in_topic_of(tenant)
                message = entry.message
                # what cannot be read is nobody's: it is listed only where all are
                if message is None and (webhook or key):
                    continue
                if message is not None and (webhook not in {None, message.webhook} or key not in {None, message.key}):
                    continue
                yield message, entry


def _facts(entry: UndeliveredEntry) -> dict[str, Any]:
    return {"fault": entry.fault} if entry.message is None else entry.message.model_dump()


def _line(entry: UndeliveredEntry) -> str:
    """A key is asked for as it stands here, so it is never cut."""
    one = entry.message
    if one is None:
        return f"malformed: {entry.fault}"
    at = f"{datetime.fromtimestamp(one.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    return f"{at} {one.webhook} {one.key} {one.reason}, attempts {one.attempts}: {one.detail}"
