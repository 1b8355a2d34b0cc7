"""From which rows of usage the charges of an account, device and zone come: how many, of when, and their digest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256

import numpy as np

from cloud_jobs.billing.rating.calendars import EPOCH, Ints
from cloud_jobs.billing.rating.cells import MeteredKey, MeteredRows
from cloud_jobs.billing.rating.holdings import Holdings
from cloud_jobs.billing.rating.usage_columns import DIGEST_BYTES, UsageColumns


def metered_rows(
    columns: UsageColumns, holdings: Holdings, row: Ints, holding: Ints
) -> Iterator[tuple[tuple[int, MeteredKey], MeteredRows]]:
    """The payer's number, whose rows, and the rows; of pieces of rows, given by their row and holding.

    An hour in which a device changed accounts is a row of both, if something was used in both.
    """
    if not len(row):
        return
    owner = holdings.owner[holding]
    # rows are in the order of device, zone, hour; an owner has one device: this is the order of zones and hours
    pair = np.unique(owner * (len(columns.hour) + 1) + row)
    owner, row = pair // (len(columns.hour) + 1), pair % (len(columns.hour) + 1)
    zone, hour = columns.zone[row], columns.hour[row]
    begin = np.concatenate(([0], np.flatnonzero((np.diff(owner) != 0) | (np.diff(zone) != 0)) + 1))
    end = np.concatenate((begin[1:], [len(row)]))
    digests = columns.digests[row].tobytes()
    owners = list(holdings.owners)
    moments = {number: EPOCH + timedelta(hours=number) for number in np.unique(hour).tolist()}
    numbers = (begin, end, owner[begin], zone[begin], hour[begin], hour[end - 1])
    for start, stop, of, at, first, last in zip(*(array.tolist() for array in numbers), strict=True):
        payer, account, device = owners[of]
        digest = sha256(digests[start * DIGEST_BYTES : stop * DIGEST_BYTES]).hexdigest()
        key = MeteredKey(account, device.tenant, device.device, columns.zones[at])
        yield (payer, key), MeteredRows(stop - start, moments[first], moments[last], digest)
