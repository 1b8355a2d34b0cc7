"""`edge-agent enrol`: one attempt, for whoever sets a device up and wants to see that it works."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime

from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificate_folder import HeldCertificate
from edge_agent.enrolment.certificate_state import certificate_folder
from edge_agent.enrolment.enrolment_loop import EnrolmentLoop, EnrolmentParts
from edge_agent.errors import EnrolmentFailed
from edge_agent.status import is_running


def enrol_once(settings: AgentSettings) -> str:
    """What there is to say. Raises EnrolmentFailed, and OSError where the certificate cannot be kept."""
    folder = certificate_folder(settings)
    if settings.enrolment is None or folder is None:
        raise EnrolmentFailed("the settings have no [enrolment]: this device is given its certificate by hand")
    if (held := folder.newest()) is not None and time.time() < held.validity.not_after_s:
        return f"{settings.device.tenant}/{settings.device.id} has a certificate: {_described(held)}"
    if is_running(settings):
        raise EnrolmentFailed("the agent runs, and enrols by itself: `edge-agent status` says how far it is")
    os.umask(0o077)
    parts = EnrolmentParts(
        folder=folder, ask_region=lambda _request: None, on_certificate=lambda: None, random=random.Random()
    )
    held = EnrolmentLoop(settings.enrolment, settings.device, parts).enrol()
    return f"{settings.device.tenant}/{settings.device.id} is enrolled: {_described(held)}"


def _described(held: HeldCertificate) -> str:
    ends = datetime.fromtimestamp(held.validity.not_after_s, UTC)
    return f"serial {held.validity.serial:x}, valid until {ends:%Y-%m-%d %H:%M} UTC"
