"""The revocation list of the region's own authority: made anew when it changes, and long before it ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from gateway.access.config import AuthorityPlace
from gateway.access.revocation import RevocationList, next_list
from identity import AuthorityFolder, Revoked

__all__ = ["OwnList"]


class OwnList:
    """The newest list of an authority; `former`: what is on disk, which every new one has to follow."""

    def __init__(self, place: AuthorityPlace, former: Mapping[str, RevocationList]) -> None:
        """Raises AuthorityFolderError."""
        self.folder = AuthorityFolder.open(place.folder, place.key)
        self._life = timedelta(days=place.list_lifetime_days)
        self._renew = self._life - timedelta(days=place.renew_after_days)
        self.current = former.get(self.issuer)

    @property
    def issuer(self) -> str:
        """The authority's name."""
        return self.folder.authority.name

    def follow(self, other: RevocationList) -> bool:
        """A list of this authority was published; whether it is later than ours: our disk is an older one."""
        is_later = other.is_later(self.current)
        if is_later:
            self.current = other
        return is_later

    def is_due(self, now: datetime) -> bool:
        """Whether it is time for a new list, also with the same certificates."""
        current = self.current
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
            self.current = current = next_list(self.folder.authority, entries, current, now=now, life=self._life)
        return current
