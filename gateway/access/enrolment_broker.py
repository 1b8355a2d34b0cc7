"""What the enrolment broker of a region lets whom do: rules that never change. Pure."""

from __future__ import annotations

import hashlib

from waybill.identity.names import PrincipalKind, principal
from waybill.record import FACTORY_MOUNT, EnrolmentChannel, enrolment_filters, enrolment_rule

__all__ = ["enrolment_rules", "name_at_enrolment"]

_NAME_DIGITS = 16


def name_at_enrolment(region: str, secret: str) -> str:
    """Who the access daemon is at the enrolment broker: a name that nobody can guess who has not its secret.

    The authority of a factory signs whatever name it likes, and who has the daemon's would be the daemon there.
    """
    drawn = hashlib.sha256(b"name at the enrolment broker:" + secret.encode()).hexdigest()
    return principal(PrincipalKind.ACCESS, f"{region}-{drawn[:_NAME_DIGITS]}")


def enrolment_rules(name: str) -> str:
    """The rules file: who shows a claim writes its own requests and reads their answers; `name` is the daemon's."""
    requests, _ = enrolment_filters(EnrolmentChannel.REQUEST)
    answers, _ = enrolment_filters(EnrolmentChannel.ANSWER)
    lines = [f"user {name}"]
    for mount in ("", FACTORY_MOUNT):
        lines += [f"topic read {mount}{requests}", f"topic write {mount}{answers}"]
    for mount in ("", FACTORY_MOUNT):
        lines += [f"pattern write {mount}{enrolment_rule(EnrolmentChannel.REQUEST)}"]
        lines += [f"pattern read {mount}{enrolment_rule(EnrolmentChannel.ANSWER)}"]
    return "\n".join(lines) + "\n"
