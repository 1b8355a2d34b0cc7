"""What a daemon keeps of devices by keys that are trusted no more, given up by somebody who has decided so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.access.config import AccessSettings
from gateway.access.kept_entries import judge_kept
from gateway.access.seen_entries import SEEN_FILE, SeenEntries, SeenUnreadable
from gateway.access.status import read_access_status
from gateway.errors import NoAnswer, NotForgotten
from waybill.identity.registry_messages import CheckSigned, EntryRefused
from waybill.pulsar.compacted_topic import TopicMessage


class KeptInDoubt(NamedTuple):
    """A device whose kept entry nobody takes by today's keys: its state there, and why not."""

    device: str
    state: str
    doubt: str


def doubtful_entries(settings: AccessSettings) -> list[KeptInDoubt]:
    """The devices of which something is kept by a key that is not trusted now. Raises NotForgotten, SettingsError."""
    check_signed = settings.registry.check_signed()
    with _opened(settings) as seen:
        found = [_in_doubt(message, check_signed) for message in seen.all()]
        _check(seen)
    return [one for one in found if one is not None]


def forget_entries(settings: AccessSettings, devices: Sequence[str]) -> None:
    """Give up what is kept of these: a daemon that starts has of them what the topic has.

    All or none. Raises NotForgotten, for what is in no doubt too; SettingsError.
    """
    try:
        read_access_status(settings.status)
    except NoAnswer:
        pass
    else:
        raise NotForgotten("the access daemon runs, and holds what it has in memory: stop it first")
    check_signed = settings.registry.check_signed()
    with _opened(settings) as seen:
        try:
            for device in devices:
                message = seen.message(device)
                if message is None:
                    raise NotForgotten(f"nothing is kept of {device}")
                if _in_doubt(message, check_signed) is None:
                    raise NotForgotten(f"what is kept of {device} is signed by a key that is trusted: it holds")
            for device in devices:
                seen.forget(device)
        except SeenUnreadable as error:
            raise NotForgotten(str(error)) from error


def _opened(settings: AccessSettings) -> SeenEntries:
    path = settings.authority.folder / SEEN_FILE
    if not path.is_file():
        raise NotForgotten(f"{path}: there is no such file; the daemon makes it")
    return SeenEntries(path)


def _check(seen: SeenEntries) -> None:
    if seen.problem:
        raise NotForgotten(seen.problem)


def _in_doubt(message: TopicMessage, check_signed: CheckSigned | None) -> KeptInDoubt | None:
    try:
        kept = judge_kept(message, check_signed)
    except EntryRefused:
        return None
    entry = kept.publication.entry
    return KeptInDoubt(entry.name, entry.state, kept.doubt) if kept.doubt else None
