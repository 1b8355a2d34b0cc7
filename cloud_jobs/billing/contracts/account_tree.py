"""Who pays for whom in a time: the accounts below a payer, and those that lead to none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from cloud_jobs.billing.contracts.errors import (
    AccountCycle,
    ChangesInsidePeriod,
    ContractFault,
    MissingParent,
    RefusedVersionUsed,
    TreeTooDeep,
)
from cloud_jobs.billing.contracts.published import AccountFacts
from cloud_jobs.billing.contracts.versions import ContractVersion, ContractVersions, moment_of

MAX_LEVELS: Final = 16
"""So many levels of accounts may be below a payer."""

_Accounts = Mapping[str, ContractVersions[AccountFacts]]


class AccountTree:
    """The accounts by their ids, and of each id the accounts that ever name it as their parent, also in a publication
    that cannot be used: what that account was to become blocks the payer whose it would be."""

    def __init__(self, accounts: _Accounts) -> None:
        self._accounts = accounts
        self._children: dict[str, set[str]] = defaultdict(set)
        for name, versions in accounts.items():
            stated = [facts.parent for facts in versions.facts]
            stated += [one.body.get("parent") for one in versions.refusals]
            for parent in stated:
                if isinstance(parent, str):
                    self._children[parent].add(name)

    def payers(self, start_us: int, end_us: int) -> list[str]:
        """The accounts that pay for some of the time, sorted, also those whose publication cannot be used."""
        return sorted(
            name
            for name, versions in self._accounts.items()
            if any(one.facts.pays for one in versions.within(start_us, end_us))
            or any("payer" in one.body for one in versions.refused_within(start_us, end_us))
        )

    def above(self, names: Iterable[str]) -> list[str]:
        """The accounts that ever pay, of some accounts and of all that were ever above them; sorted."""
        seen, waiting = set[str](), [*names]
        while waiting:
            name = waiting.pop()
            if name not in seen and name in self._accounts:
                seen.add(name)
                waiting += [facts.parent for facts in self._accounts[name].facts if facts.parent]
        return sorted(name for name in seen if any(facts.pays for facts in self._accounts[name].facts))

    def below(self, payer: str, start_us: int, end_us: int, faults: list[ContractFault]) -> list[str]:
        """The payer and all accounts that lead to it within the time, sorted; what is wrong goes to `faults`."""
        found, level = {payer}, [payer]
        for depth in range(MAX_LEVELS + 1):
            following = []
            for parent in level:
                for name in sorted(self._children.get(parent, ())):
                    if self._is_child(name, parent, start_us, end_us, faults) and name not in found:
                        found.add(name)
                        following.append(name)
            if depth == MAX_LEVELS:
                faults.extend(TreeTooDeep(name, MAX_LEVELS) for name in following)
            level = following
        return sorted(found)

    def _is_child(self, name: str, parent: str, start_us: int, end_us: int, faults: list[ContractFault]) -> bool:
        """Whether an account has this parent at some moment of the time."""
        versions = self._accounts[name]
        of_parent = [one for one in versions.within(start_us, end_us) if one.facts.parent == parent]
        if not of_parent:
            faults.extend(
                RefusedVersionUsed(one.refused)
                for one in versions.refused_within(start_us, end_us)
                if one.body.get("parent") == parent
            )
            return False
        for one in of_parent:
            there = self._accounts[parent].times_within(one.begin_us, one.end_us)
            if there != ((one.begin_us, one.end_us),):
                missing = one.begin_us if not there or there[0][0] > one.begin_us else there[0][1]
                faults.append(MissingParent(name, parent, moment_of(missing)))
                break
        return True

    def changes(self, name: str, start_us: int, end_us: int) -> Iterator[ContractFault]:
        """Where an account changes who pays for it within the time."""
        versions = list(self._accounts[name].within(start_us, end_us))
        for before, after in pairwise(versions):
            if before.facts.parent != after.facts.parent:
                was, is_now = (repr(one.facts.parent) if one.facts.parent else "none" for one in (before, after))
                yield ChangesInsidePeriod(name, "parent", was, is_now, moment_of(after.begin_us))

    def way_up(self, name: str, moment_us: int) -> ContractFault | None:
        """Why an account that is there at a moment leads to no payer then; None: it pays itself, or one above it does.

        An account that is not there leads nowhere, and nothing is wrong with that.
        """
        path: dict[str, None] = {}
        version = self._at(name, moment_us)
        while version is not None and version.facts.parent is not None:
            path[name] = None
            above = version.facts.parent
            if above in path:
                names = list(path)
                return AccountCycle(names[names.index(above) :])
            version = self._at(above, moment_us)
            if version is None:
                return MissingParent(name, above, moment_of(moment_us))
            name = above
        return None

    def _at(self, name: str, moment_us: int) -> ContractVersion[AccountFacts] | None:
        versions = self._accounts.get(name)
        return None if versions is None else versions.at(moment_us)

    def without_payer(self, moment_us: int) -> list[ContractFault]:
        """Why accounts lead to no payer at a moment: each cycle, and each parent that is not there, once."""
        faults = list[ContractFault]()
        seen = set[str]()
        for name in sorted(self._accounts):
            path: dict[str, None] = {}
            here: str | None = name
            while here is not None and here not in seen:
                seen.add(here)
                path[here] = None
                version = self._accounts[here].at(moment_us)
                parent = version.facts.parent if version else None
                above = self._accounts.get(parent) if parent else None
                if parent and (above is None or above.at(moment_us) is None):
                    faults.append(MissingParent(here, parent, moment_of(moment_us)))
                    break
                if parent in path:
                    names = list(path)
                    faults.append(AccountCycle(names[names.index(parent) :]))
                here = parent
            faults.extend(self._never_usable(name, moment_us))
        return faults

    def _never_usable(self, name: str, moment_us: int) -> Iterator[ContractFault]:
        """What was to be an account, and is none at all: of its devices nobody knows."""
        versions = self._accounts[name]
        if versions.at(moment_us) is None:
            for one in versions.refused_within(moment_us, moment_us + 1):
                yield RefusedVersionUsed(one.refused)
