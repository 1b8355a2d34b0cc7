"""What became of each device that a command was to change: published, in force, outranked, refused or unknown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from waybill.identity.confirmations import RegionVerdicts
from waybill.identity.errors import IdentityError
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.registry_topic import PublicationUnknown, RegistryUnreachable

_MAX_NAMED: Final = 10
_NOT_KEPT: Final = "it was published more than a day ago, and confirmations are not kept so long"


class Became(StrEnum):
    """What became of a device's change: the word in `--json`."""

    PUBLISHED = "published"
    """It is published, and the regions were not asked."""
    CONFIRMED = "confirmed"
    """Every region has it in force."""
    NOT_CONFIRMED = "not-confirmed"
    """A region refuses it, or has not confirmed it in time."""
    OUTRANKED = "outranked"
    """It is published, or was as it is to be, and another change of the same moment holds."""
    UNKNOWN = "unknown"
    """It was sent, and nobody knows whether it is published or holds."""
    NOT_PUBLISHED = "not-published"
    """The command was cut short before its turn."""
    REFUSED = "refused"
    """It changed meanwhile, and the change that was asked for is none any more."""
    AS_IT_IS = "as-it-is"
    """It was as it is to be, and the regions were not asked."""


class DeviceOutcome(NamedTuple):
    """What became of a device's change, and why; `missing`: the regions that have not confirmed it."""

    became: Became
    why: str = ""
    missing: tuple[str, ...] = ()


class ChangeOutcome(NamedTuple):
    """What became of a change. `devices`: of each device by its name, of those too that stay as they are.

    `confirmed`: regions that have all of it in force; `missing`: regions whose access daemon has not confirmed each
    device in time; None: nobody waited. `why`: what those said, of which devices, and whether the confirmations can be
    read at all. `unlisted`: regions that there are and the settings do not name. `cut_short`: why it did not go on;
    `is_interrupted`: because somebody ended the command.
    """

    publications: tuple[DevicePublication, ...]
    devices: Mapping[str, DeviceOutcome] = MappingProxyType({})
    missing: tuple[str, ...] | None = None
    why: str = ""
    confirmed: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    cut_short: str = ""
    is_interrupted: bool = False

    @property
    def holds(self) -> bool:
        """Whether no other change made at the same time outranks one of these, as far as is known."""
        return not self.names(Became.OUTRANKED, Became.UNKNOWN)

    def names(self, *became: str) -> list[str]:
        """The devices of which this became."""
        return [name for name, one in self.devices.items() if one.became in became]


class Interrupted(PublicationUnknown):
    """Somebody ended the command; what was being sent may be published."""


class ChangeCutShort(RegistryUnreachable):
    """The cluster was lost, took a right away, or somebody ended it, when something may be published already."""

    def __init__(self, outcome: ChangeOutcome) -> None:
        super().__init__(outcome.cut_short)
        self.outcome = outcome


@dataclass(slots=True)
class Published:
    """What a command has published, device by device; `error`: why it did not go on, at the first of `left`.

    `same`: the devices that were as they are to be at their turn.
    """

    made: dict[str, DevicePublication] = field(default_factory=dict[str, DevicePublication])
    refused: dict[str, IdentityError] = field(default_factory=dict[str, IdentityError])
    same: list[str] = field(default_factory=list[str])
    left: Sequence[str] = ()
    error: RegistryUnreachable | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether surely nothing was published."""
        return not self.made and not isinstance(self.error, PublicationUnknown)

    def outcomes(self) -> dict[str, DeviceOutcome]:
        """Of each device, before anybody is asked what became of it."""
        found = {name: DeviceOutcome(Became.PUBLISHED) for name in self.made}
        found |= {name: DeviceOutcome(Became.REFUSED, str(why)) for name, why in self.refused.items()}
        found |= {name: DeviceOutcome(Became.NOT_PUBLISHED, "its turn did not come") for name in self.left}
        if self.error is not None and self.left:
            # What was sent and not answered may be in the topic.
            became = Became.UNKNOWN if isinstance(self.error, PublicationUnknown) else Became.NOT_PUBLISHED
            found[self.left[0]] = DeviceOutcome(became, str(self.error))
        return found

    @property
    def text(self) -> str:
        """How far it came."""
        unknown = isinstance(self.error, PublicationUnknown) and bool(self.left)
        # One that is published may have to be published once more.
        published = len(self.made.keys() - {*self.left})
        of_one = f", of {self.left[0]} nobody knows" if unknown else ""
        return f"cut short: {published} published{of_one}, {len(self.left) - unknown} not published: {self.error}"


class Heard(NamedTuple):
    """What these regions said of devices; `problem`: why confirmations cannot be read, and so nothing is confirmed."""

    regions: tuple[str, ...]
    devices: Mapping[str, RegionVerdicts]
    problem: str = ""

    def outcome(self, name: str) -> DeviceOutcome:
        """Of a device that was asked about."""
        found = self.devices[name]
        if self.problem:
            return DeviceOutcome(Became.NOT_CONFIRMED, self.problem, self.regions)
        missing = tuple(one for one in self.regions if one not in found.confirmed)
        return DeviceOutcome(Became.NOT_CONFIRMED if missing else Became.CONFIRMED, found.text, missing)


def change_outcome(
    sent: Published,
    gone: Mapping[str, DeviceOutcome],
    beside: Iterable[str],
    heard: Heard | None,
    listed: Collection[str],
) -> ChangeOutcome:
    """Of each device what became of it.

    `gone`: what does not hold; `beside`: devices that stay as they are; `heard` None: nobody waited;
    `listed`: the regions of the settings.
    """
    made, unasked = tuple(sent.made.values()), DeviceOutcome(Became.AS_IT_IS, "" if heard is None else _NOT_KEPT)
    devices = dict.fromkeys(beside, unasked) | sent.outcomes() | dict(gone)
    if heard is None:
        cut_short, is_interrupted = "" if sent.error is None else sent.text, isinstance(sent.error, Interrupted)
        return ChangeOutcome(made, devices, cut_short=cut_short, is_interrupted=is_interrupted)
    # What was changed after the regions were asked is not in force, whatever they said.
    said = {name: heard.outcome(name) for name in heard.devices if name not in gone}
    missing = tuple(one for one in heard.regions if any(one in each.missing for each in said.values()))
    confirmed = tuple(one for one in heard.regions if said and one not in missing)
    unlisted = tuple(sorted({*confirmed, *missing} - {*listed}))
    return ChangeOutcome(made, devices | said, missing, heard.problem or _text(said), confirmed, unlisted)


def _text(said: Mapping[str, DeviceOutcome]) -> str:
    """What is not in force, and of which devices: what regions say alike of many is one thing."""
    alike: dict[str, list[str]] = {}
    for name, one in said.items():
        if one.missing:
            alike.setdefault(one.why, []).append(name)
    return "; ".join(f"{why} ({_names(names, len(said))})" for why, names in alike.items())


def _names(names: Sequence[str], of: int) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    count = f"{len(names)} of {of}: " if of > 1 else ""
    return f"{count}{', '.join(names[:_MAX_NAMED])}{more}"
