"""Publishes the devices of a change one by one, until all are published, the cluster is lost, or somebody interrupts.

Whatever ends it, what is published by then is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from waybill.identity.change_outcome import Interrupted, Published
from waybill.identity.errors import IdentityError
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.registry_publisher import RegistryUnreachable
from waybill.identity.standing_change import AsItIs

__all__ = ["notes_interrupt", "published_in_turn"]


def published_in_turn(
    names: Sequence[str],
    turn: Callable[[str], DeviceEntry],
    publish: Callable[[DeviceEntry], str],
    on_published: Callable[[int], object],
    before: Published | None = None,
) -> Published:
    """What was published, beside what was `before`; `turn` makes the entry of a device.

    Raises RegistryUnreachable where surely nothing was.
    """
    sent = Published() if before is None else before
    for number, name in enumerate(names):
        former = sent.made.get(name)
        try:
            _take_turn(sent, name, turn, publish)
            on_published(len(sent.made))
        except RegistryUnreachable as error:
            sent.error, sent.left = error, names[number:]
            if sent.is_nothing:
                raise
            return sent
        except KeyboardInterrupt:
            # It may have come after the cluster's answer.
            is_made = sent.made.get(name) is not former
            sent.error, sent.left = Interrupted(f"interrupted at {name}"), names[number + is_made :]
            return sent
    return sent


def _take_turn(
    sent: Published, name: str, turn: Callable[[str], DeviceEntry], publish: Callable[[DeviceEntry], str]
) -> None:
    try:
        entry = turn(name)
    except AsItIs:
        sent.same.append(name)
    except IdentityError as refused:
        sent.refused[name] = refused
    else:
        sent.made[name] = DevicePublication(entry, publish(entry))


@contextmanager
def notes_interrupt(sent: Published, before: str) -> Iterator[None]:
    """Who ends a command while it waits hears what it has published."""
    try:
        yield
    except KeyboardInterrupt:
        sent.error = Interrupted(f"interrupted before {before}")
