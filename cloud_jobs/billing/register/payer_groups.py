"""Payers cut into groups that a task can hold: neighbours by their devices, so that a group reads few files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa

from cloud_jobs.billing.contracts import PayerContract
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import usage_rows, usage_rows_each
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake

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


class UsagePart(NamedTuple):
    """Rows of usage of some devices. `payers`: whose they are, in order; `payers_of`: those of each device.

    `span`: the first and the last moment of the rows.
    """

    devices: list[TenantDevice]
    payers: list[str]
    payers_of: Mapping[TenantDevice, list[str]]
    span: tuple[datetime, datetime]
    rows: pa.Table


def usage_parts(
    lake: Lake, state: LakeState, contracts: Sequence[PayerContract], columns: Sequence[str]
) -> Iterator[UsagePart]:
    """What the devices of some payers used in all their periods, part by part."""
    # a device may have several payers in one period, one after the other
    payers_of: dict[TenantDevice, list[str]] = defaultdict(list)
    for one in contracts:
        for device in one.devices:
            payers_of[device].append(one.id)
    # payers of several time zones: what is read is cut to each one's own days by rating
    first = min(one.period.start for one in contracts)
    last = max(one.period.end for one in contracts) - timedelta.resolution
    for devices in device_parts(contracts, usage_rows_each(lake, state, first, last)):
        payers = sorted({payer for device in devices for payer in payers_of[device]})
        rows = usage_rows(lake, state, devices, first, last, columns=columns)
        yield UsagePart(devices, payers, payers_of, (first, last), rows)
