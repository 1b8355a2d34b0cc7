"""Payers cut into groups that a task can hold: neighbours by their devices, so that a group reads few files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cloud_jobs.billing.contracts import PayerContract
from cloud_jobs.lake.coverage import TenantDevice

DEVICES_AT_ONCE: Final = 6_000
"""The most devices that are read at a time, and about as many as a group has: its charges are held at once."""
_ROWS_AT_ONCE: Final = 200_000
"""So many rows of usage are read at a time, whoever pays for them: about 60 MB."""
_LEAST_DEVICES: Final = 100
_EACH_PAYER: Final = 5
"""A payer costs about as much as so many devices."""


def payer_groups(contracts: Sequence[PayerContract], tasks: int) -> list[list[PayerContract]]:
    """About `tasks` groups, more of what is much, and one of what is little; a payer is in one."""
    # usage lies in the order of devices, so neighbours are in the same files
    in_order = sorted(contracts, key=lambda one: (one.assigned[:1], one.id))
    weights = [len(one.assigned) + _EACH_PAYER for one in in_order]
    most = min(max(sum(weights) // max(tasks, 1), _LEAST_DEVICES), DEVICES_AT_ONCE)
    groups: list[list[PayerContract]] = []
    # the first payer opens the first group
    held = most
    for contract, weight in zip(in_order, weights, strict=True):
        if held + weight > most:
            groups.append([])
            held = 0
        groups[-1].append(contract)
        held += weight
    return groups


def device_parts(contracts: Sequence[PayerContract], rows_each: int = 0) -> Iterator[list[TenantDevice]]:
    """The devices of some payers, each once, in parts that can be read at once, if a device has so many rows."""
    devices = sorted({device for contract in contracts for device in contract.devices})
    # few parts: each looks into every file of the period that may have a row of it
    at_once = min(DEVICES_AT_ONCE, max(_ROWS_AT_ONCE // max(rows_each, 1), 1))
    for begin in range(0, len(devices), at_once):
        yield devices[begin : begin + at_once]
