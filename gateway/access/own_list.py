"""The revocation list of the region's own authority: made anew when it changes, and long before it ends.

A region's authority may be made anew, when its key was lost: it has the same name and another key. The lists of the one
before have numbers that ours must follow and serials that stay revoked; a broker that has one refuses all that we sign.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from gateway.access.config import AuthorityPlace
from gateway.access.revocation import RevocationList, next_list
from waybill.identity.authority import Revoked
from waybill.identity.authority_folder import AuthorityFolder

__all__ = ["OwnList"]

# of the last seconds: what we published comes back from the topic
_MAX_KNOWN: Final = 10


class OwnList:
    """The newest list by the authority's name; `former`: what is on disk, which every new one has to follow.

    `is_ours`: it is signed by the present key. Another is for numbers and serials alone, and the next list is due.
    """

    def __init__(self, place: AuthorityPlace, former: Mapping[str, RevocationList]) -> None:
        """Raises AuthorityFolderError."""
        self.folder = AuthorityFolder.open(place.folder, place.key)
        self._life = timedelta(days=place.list_lifetime_days)
        self._renew = self._life - timedelta(days=place.renew_after_days)
        self.current: RevocationList | None = None
        self.is_ours = False
        self._known: deque[bytes] = deque(maxlen=_MAX_KNOWN)
        if (found := former.get(self.issuer)) is not None:
            self._keep(found)

    @property
    def issuer(self) -> str:
        """The authority's name."""
        return self.folder.authority.name

    def is_by_us(self, found: RevocationList) -> bool:
        """Whether the authority's present key signed it."""
        return found.is_signed_by(self.folder.authority)

    def follow(self, other: RevocationList) -> bool:
        """A list of our name was published; whether the next of ours has to follow it.

        One of ours that is later: our disk is an older one. One by another key that ours is not later than.
        """
        current = self.current
        must_follow = other.is_later(current) or not (
            current is None or current.is_later(other) or self.is_by_us(other)
        )
        if must_follow:
            self._keep(other)
        return must_follow

    def is_of_another(self, other: RevocationList) -> bool:
        """Whether a list by our key holds against ours, or is as late, and was not made here: nor was it followed."""
        is_older = self.current is not None and self.current.is_later(other)
        return not is_older and self.is_by_us(other) and other.pem not in self._known

    def is_due(self, now: datetime) -> bool:
        """Whether it is time for a new list, also with the same certificates."""
        current = self.current if self.is_ours else None
        # One of a clock that was ahead locks out everybody: it is replaced as soon as the clock is right.
        return current is None or current.this_update > now or current.next_update - now < self._renew

    def update(self, revoked: Mapping[int, Revoked] | None, now: datetime) -> RevocationList:
        """The list with these certificates; None: with those that the last one has."""
        current = self.current
        if revoked is None:
            revoked = {serial: Revoked(serial, now) for serial in current.serials} if current else {}
        # One from the disk has no certificate with it, and cannot be published.
        if current is None or self.is_due(now) or current.serials != revoked.keys() or not current.certificate_pem:
            # Whatever the entry says: nothing was revoked later than now.
            entries = [revoked[serial]._replace(at=min(revoked[serial].at, now)) for serial in sorted(revoked)]
            current = next_list(self.folder.authority, entries, current, now=now, life=self._life)
            self.current, self.is_ours = current, True
            self._known.append(current.pem)
        return current

    def _keep(self, found: RevocationList) -> None:
        self.current, self.is_ours = found, self.is_by_us(found)
        self._known.append(found.pem)
