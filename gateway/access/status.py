"""What an access daemon says of itself."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gateway.access.broker_log import RefusedPublication
from gateway.access.config import AccessEndpoint
from gateway.access.enrolment import RefusedRequest
from gateway.status_answer import read_answer

__all__ = ["AccessStatus", "RefusedEnrolment", "read_access_status"]

_SHOWN_CHARACTERS = 200


class RefusedEnrolment(BaseModel):
    """A request for a certificate that was refused: when (seconds since 1970), who asked, and why."""

    model_config = ConfigDict(frozen=True)

    at_s: float
    sender: str
    reason: str
    detail: str

    @classmethod
    def of(cls, refused: RefusedRequest) -> RefusedEnrolment:
        """As the status has it; what a sender wrote is cut."""
        return cls(
            at_s=refused.at.timestamp(),
            sender=refused.sender[:_SHOWN_CHARACTERS],
            reason=refused.reason,
            detail=refused.detail[:_SHOWN_CHARACTERS],
        )


class RefusedPublications(BaseModel):
    """Publications that a broker's rules refused: when (its local time), the sender's true name, and how many."""

    model_config = ConfigDict(frozen=True)

    broker: str
    at: str
    sender: str
    kind: str
    topic: str
    times: int

    @classmethod
    def of(cls, broker: str, refused: RefusedPublication) -> RefusedPublications:
        """As the status has it; what a sender wrote is cut."""
        return cls(broker=broker, **(refused._asdict() | {"topic": refused.topic[:_SHOWN_CHARACTERS]}))


class AccessStatus(BaseModel):
    """One moment of an access daemon. Moments are seconds since 1970.

    `healthy`: the registry is read to its end, and the broker has what follows from it. `last_error`: why it is not.
    `entries_refused_by`: messages of the registry that are no entries or that nobody signed who may, by reason.
    `entries_published_again`: what holds of a device, because another message came last.
    `topics_held`: how often another producer had a topic for itself, so that nothing was published there, by topic.
    `list_bytes`: of the region's own list, as it is sent to other regions: at most 5 MB.
    `devices_left_open`: those that may not connect, and whom neither a name in the rules nor a list keeps out.
    `answers_dropped`: confirmations and refusals of publications that nobody hears, for want of room.
    `registry_unreachable_since_s`: None while it is read. `lists`: by issuer, until when each list holds.
    `key_ends_s`: until when the daemon's own key is trusted, None for good.
    `enrolments`: requests for certificates by what became of them; `enrolments_refused`: the last that were refused.
    `changes_failed`: how often one could not be applied to what the broker is to have; it is tried again.
    `connections_refused`: by broker (`devices`, `claims`) and reason, since the logs that are there begin.
    `publications_refused`: by broker and kind, as long; `last_publications_refused`: the last of them.
    """

    model_config = ConfigDict(frozen=True)

    region: str
    pid: int
    started_at: str
    healthy: bool = False
    last_error: str = "starting"
    registry_current: bool = False
    registry_unreachable_since_s: float | None = None
    devices_known: int = 0
    devices_closed: int = 0
    devices_left_open: int = 0
    list_bytes: int = 0
    certificates_revoked: int = 0
    rules_version: int = 0
    lists: dict[str, float] = {}
    key_ends_s: float | None = None
    entries_refused: int = 0
    entries_refused_by: dict[str, int] = {}
    entries_outranked: int = 0
    entries_published_again: int = 0
    topics_held: dict[str, int] = {}
    answers_dropped: int = 0
    last_entry_refused: str = ""
    enrolments: dict[str, int] = {}
    enrolments_refused: list[RefusedEnrolment] = []
    connections_refused: dict[str, dict[str, int]] = {}
    publications_refused: dict[str, dict[str, int]] = {}
    last_publications_refused: list[RefusedPublications] = []
    sessions_ended: int = 0
    sessions_came_back: int = 0
    reloads: int = 0
    steps_failed: int = 0
    changes_failed: int = 0


def read_access_status(endpoint: AccessEndpoint) -> AccessStatus:
    """Ask the daemon that runs with these settings. Raises NoAnswer."""
    return read_answer(endpoint, "status", AccessStatus, "no access daemon")
