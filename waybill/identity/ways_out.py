"""What a refused change of a device says: what is there, and a way on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from waybill.identity.device_states import DeviceState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from waybill.identity.registry import DeviceEntry

__all__ = ["awaited_claim", "ended_claims", "known_already", "way_out"]

_AGAIN_OPTION: Final = "waybill device expect --again"


def way_out(entry: DeviceEntry) -> str:
    """What can be done from where a device is: no state is one in which a command says no and nothing else."""
    match entry.state:
        case DeviceState.EXPECTED:
            return f": it enrols with its claim, or gets another one ({_AGAIN_OPTION}), or is suspended or revoked"
        case DeviceState.ACTIVE:
            return ": it may send until it is suspended, revoked, moved or replaced"
        case DeviceState.SUSPENDED:
            return ": resume it first, or revoke, move or replace it"
        case _ if entry.successor:
            return f" for good, and goes on as {entry.successor}: change that one"
        case _:
            return " for good: replace it, or expect another name"


def known_already(entry: DeviceEntry) -> str:
    """Why a device is not made known: it is, and a claim that was given out would end unseen; "": see `way_out`."""
    match entry.state:
        case DeviceState.ACTIVE:
            return (
                f"it is known already, and active: once its certificates have ended {_AGAIN_OPTION} gives it another "
                "claim"
            )
        case DeviceState.EXPECTED:
            there = f"it is expected already, in region {entry.region} with {awaited_claim(entry)}"
            return f"{there}; --again gives it another claim, and makes that one void"
        case _:
            return ""


def awaited_claim(entry: DeviceEntry) -> str:
    """With what a device that is expected is to enrol."""
    claim = entry.claim
    if claim is None:
        return "no claim"
    if not claim.is_token:
        return f"the factory certificate {claim.id}"
    until = "" if claim.until is None else f" until {claim.until:%Y-%m-%dT%H:%M:%SZ}"
    return f"a one-time token that is good{until}"


def ended_claims(held: Mapping[str, DeviceEntry | None], made: Iterable[DeviceEntry]) -> dict[str, str]:
    """What was known of each device that was expected and is to be so otherwise: its earlier claim is void by that."""
    found = dict[str, str]()
    for entry in made:
        before = held.get(entry.name)
        if before is None or before.state is not DeviceState.EXPECTED or before.claim == entry.claim:
            continue
        void = "; that is void: a device that has it cannot enrol by it"
        found[entry.name] = f"it was expected in region {before.region} with {awaited_claim(before)}{void}"
    return found
