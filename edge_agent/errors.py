"""What can go wrong on the device.

AgentError
├── StoreError         the buffer cannot do what was asked; nothing that was acknowledged is lost
│   ├── StoreFull      no space is left (`ENOSPC`, or the free-space floor)
│   ├── StoreFailing   the medium answers with errors (`EIO`); try again later
│   ├── StoreDamaged   what is on the disk is not what was written: salvage it
│   ├── StoreForeign   the buffer is another device's
│   ├── StoreVersion   the buffer was written by another version of the agent
│   ├── StoreInUse     another agent has the buffer
│   └── StoreClosed    this buffer was closed; another may have the file now
├── EnrolmentFailed    no certificate was given
└── LinkError          a broker cannot be reached, or ended the connection
    ├── LinkRefused    the broker answered and said no
    ├── LinkClosed     the broker closed a connection that stood
    └── NoCertificate  the device is not enrolled yet
"""

from __future__ import annotations


class AgentError(Exception):
    """Base of everything this package raises."""


class StoreError(AgentError):
    """The buffer could not do what was asked of it."""

    @property
    def reason(self) -> str:
        """A short stable word for metrics: `full`, `failing`, `damaged`, `foreign`, `version`, `inuse` or `closed`."""
        return type(self).__name__.removeprefix("Store").lower()


class StoreFull(StoreError):
    """There is no space left on the device."""


class StoreFailing(StoreError):
    """The medium answered with an error."""


class StoreDamaged(StoreError):
    """The file's content is not what was written."""


class StoreForeign(StoreError):
    """The file belongs to another device."""


class StoreVersion(StoreError):
    """The file has the tables of another version. Nothing of it was changed."""


class StoreInUse(StoreError):
    """Another process has the buffer open for writing."""


class StoreClosed(StoreError):
    """The buffer was closed: a thread that should have ended still uses it."""


class EnrolmentFailed(AgentError):
    """No certificate was given; the message says why, and what to do."""


class LinkError(AgentError):
    """A connection could not be made, or broke."""


class LinkRefused(LinkError):
    """The other side refused the connection or the subscription; the message says why."""


class LinkClosed(LinkError):
    """The other side closed the connection, without a word or because another client has the same id."""


class NoCertificate(LinkError):
    """The device has no operational certificate to show."""
