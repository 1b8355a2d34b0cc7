"""What can go wrong on the device."""

from __future__ import annotations


class AgentError(Exception):
    """Base of all errors of this package."""


class StoreError(AgentError):
    @property
    def reason(self) -> str:
        """A stable word for metrics: `full`, `failing`, `damaged`, `foreign`, `version`, `inuse` or `closed`."""
        return type(self).__name__.removeprefix("Store").lower()


class StoreFull(StoreError):
    """There is no space left on the device."""


class StoreFailing(StoreError):
    """The medium answered with an error."""


class StoreDamaged(StoreError):
    """The file's content is not what the agent wrote."""


class StoreForeign(StoreError):
    """The file belongs to another device."""


class StoreVersion(StoreError):
    """The file has the tables of another version. It is unchanged."""


class StoreInUse(StoreError):
    """Another process has the buffer open for writing."""


class StoreClosed(StoreError):
    """The buffer was closed: a thread that should have ended still uses it."""


class EnrolmentFailed(AgentError):
    """No certificate was issued; the message says why and what to do."""


class LinkError(AgentError):
    """A connection could not be made, or broke."""


class LinkClosed(LinkError):
    """The broker closed the connection without a reason, or because another client has the same id."""
