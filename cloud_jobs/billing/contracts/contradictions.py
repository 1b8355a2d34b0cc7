"""Versions that are right alone and not beside others: numbers of two sellers, a time zone that changes, meters that
a price list forgets. Found once for all periods; each blocks those who use the version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from cloud_jobs.billing.contracts.errors import (
    ContractFault,
    MetersForgotten,
    OtherZoneThanBefore,
    SharedNumberPrefix,
)
from cloud_jobs.billing.contracts.published import AccountFacts, TariffFacts
from cloud_jobs.billing.contracts.versions import ContractVersions, moment_of

_Found = Iterator[tuple[str, ContractFault]]


def contradictions(of_kind: Mapping[str, Mapping[str, ContractVersions[Any]]]) -> dict[str, ContractFault]:
    """The faults of versions beside others, each by the publication of the version."""
    return {
        **dict(_shared_prefixes(of_kind["legal_entity"])),
        **dict(_other_zones(of_kind["account"])),
        **dict(_forgotten_meters(of_kind["tariff"])),
    }


def own_time_zone(versions: ContractVersions[AccountFacts]) -> str | None:
    """The time zone of an account: that of the first version that pays; None: none ever does."""
    return next((facts.pays.time_zone for facts in versions.facts if facts.pays), None)


def _shared_prefixes(sellers: Mapping[str, ContractVersions[str]]) -> _Found:
    """A number that was given is never free again: so whichever versions have the prefix, and whenever."""
    used: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, versions in sorted(sellers.items()):
        for prefix, publication in zip(versions.facts, versions.publication_ids, strict=True):
            used[prefix].append((name, publication))
    for prefix, found in used.items():
        names = list(dict.fromkeys(name for name, _ in found))
        if len(names) > 1:
            fault = SharedNumberPrefix(prefix, names)
            yield from ((publication, fault) for _, publication in found)


def _other_zones(accounts: Mapping[str, ContractVersions[AccountFacts]]) -> _Found:
    for name, versions in accounts.items():
        own = own_time_zone(versions)
        for begin, facts, publication in zip(versions.begins, versions.facts, versions.publication_ids, strict=True):
            if facts.pays and facts.pays.time_zone != own:
                assert own is not None
                yield publication, OtherZoneThanBefore(name, own, facts.pays.time_zone, moment_of(begin))


def _forgotten_meters(tariffs: Mapping[str, ContractVersions[TariffFacts]]) -> _Found:
    for name, versions in tariffs.items():
        for at, (before, after) in enumerate(pairwise(versions.facts), 1):
            forgotten = before.sold - after.sold - after.not_sold
            if forgotten:
                moment = moment_of(versions.begins[at])
                yield versions.publication_ids[at], MetersForgotten(name, sorted(forgotten), moment)
