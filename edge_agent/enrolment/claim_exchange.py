"""One conversation with a region's enrolment broker: a claim is shown, a request sent, and its answer waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edge_agent.config import EnrolmentSettings
from edge_agent.errors import EnrolmentFailed, LinkError
from edge_agent.link_advice import claim_refusal
from edge_agent.mqtt_session import MqttSession
from waybill.daemon.tls import TlsSettings
from waybill.identity.claims import token_user
from waybill.identity.enrolment import MAX_ENROLMENT_BYTES
from waybill.identity.errors import IdentityError
from waybill.mqtt.broker_settings import BrokerSettings, read_password
from waybill.mqtt.mqtt_client import MqttMessage, MqttSessionOptions
from waybill.record import EnrolmentChannel, enrolment_topic

PACKET_BYTES = MAX_ENROLMENT_BYTES + 512
POLL_S = 1.0


def claim_user(settings: EnrolmentSettings) -> str:
    """Who this device is at the enrolment broker, `claim@...`. Raises EnrolmentFailed."""
    try:
        if settings.token_file is not None:
            return token_user(read_password(settings.token_file))
        assert settings.certificate is not None  # the settings' own check: there is a token or a certificate
        return _factory_name(settings.certificate)
    except (OSError, ValueError, IdentityError) as error:
        raise EnrolmentFailed(f"no claim to show: {settings.token_file or settings.certificate}: {error}") from error


def exchange(
    settings: EnrolmentSettings,
    request: bytes,
    is_answer: Callable[[bytes], bool],
    *,
    is_stopping: Callable[[], bool] = lambda: False,
) -> bytes:
    """The answer to a request. Raises EnrolmentFailed where there is no claim, or no answer in time, and LinkError."""
    user = claim_user(settings)
    answers: list[bytes] = []
    session = MqttSession(_broker(settings, user), _options(user), _keeping(answers, is_answer))
    try:
        session.open()
        session.subscribe(enrolment_topic(user, EnrolmentChannel.ANSWER))
        deadline_s = time.monotonic() + settings.answer_timeout_s
        is_sent = False
        # Asked only when the answer would come: a request before that may be answered to nobody.
        while not answers:
            if session.is_subscribed and not is_sent:
                session.publish(enrolment_topic(user, EnrolmentChannel.REQUEST), request)
                is_sent = True
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0 or is_stopping():
                raise EnrolmentFailed(f"{settings.host}:{settings.port}: no answer from the region's access daemon")
            session.poll(min(POLL_S, remaining_s))
            for _, reason in session.take_publish_results():
                if reason.is_failure:
                    raise EnrolmentFailed(f"{settings.host}:{settings.port}: the broker takes no request: {reason}")
        return answers[0]
    except LinkError as error:
        raise EnrolmentFailed("; ".join(filter(None, (str(error), claim_refusal(str(error)))))) from error
    finally:
        session.close()


def _keeping(answers: list[bytes], is_answer: Callable[[bytes], bool]) -> Callable[[MqttMessage], None]:
    def keep(message: MqttMessage) -> None:
        if is_answer(message.payload):
            answers.append(message.payload)

    return keep


def _options(user: str) -> MqttSessionOptions:
    # No session outlives the connection: an answer that is lost is asked for again, with the same key.
    return MqttSessionOptions(client_id=user, max_packet_bytes=PACKET_BYTES)


def _broker(settings: EnrolmentSettings, user: str) -> BrokerSettings:
    tls = TlsSettings(ca=settings.ca, certificate=settings.certificate, key=settings.key)
    is_token = settings.token_file is not None
    return BrokerSettings(
        host=settings.host,
        port=settings.port,
        tls=tls,
        username=user if is_token else None,
        password_file=settings.token_file,
        connect_timeout_s=settings.connect_timeout_s,
    )


def _factory_name(certificate: Path) -> str:
    from waybill.identity.authority import common_name, read_certificates  # noqa: PLC0415 - only who enrols pays for it

    return common_name(read_certificates(certificate.read_bytes())[0].subject)
