"""What the enrolment broker of a region reads: rules that never change, and the passwords of open tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gateway.access.enrolment import may_log_in
from identity.claims import password_file
from identity.names import PrincipalKind, principal
from identity.registry import DeviceEntry
from telemetry import EnrolmentChannel, enrolment_filters, enrolment_rule

__all__ = ["enrolment_passwords", "enrolment_rules"]


def enrolment_rules(region: str) -> str:
    """The rules file: who shows a claim writes its own requests and reads their answers, and nothing else."""
    requests, _ = enrolment_filters(EnrolmentChannel.REQUEST)
    answers, _ = enrolment_filters(EnrolmentChannel.ANSWER)
    lines = [f"user {principal(PrincipalKind.ACCESS, region)}", f"topic read {requests}", f"topic write {answers}"]
    lines += [f"pattern write {enrolment_rule(EnrolmentChannel.REQUEST)}"]
    lines += [f"pattern read {enrolment_rule(EnrolmentChannel.ANSWER)}"]
    return "\n".join(lines) + "\n"


def enrolment_passwords(entries: Iterable[DeviceEntry], region: str, now: datetime, own_hash: str) -> bytes:
    """The password file: the tokens that may log in now, and the access daemon itself (`own_hash`)."""
    hashes = {principal(PrincipalKind.ACCESS, region): own_hash}
    # A factory certificate has no password: its listener knows it by mutual TLS.
    for entry in entries:
        if may_log_in(entry, region, now) and entry.claim is not None and entry.claim.password_hash is not None:
            hashes[principal(PrincipalKind.CLAIM, entry.claim.id)] = entry.claim.password_hash
    return password_file(hashes)
