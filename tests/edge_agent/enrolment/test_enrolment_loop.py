"""Keeping a certificate: enrolled where there is none, renewed in time, tried again after whatever happens."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from edge_agent.config import UplinkSettings
from edge_agent.enrolment.certificates import CertificateFolder, UplinkCertificates
from edge_agent.enrolment.enrolment_loop import JITTER_SHARE, EnrolmentLoop, EnrolmentParts
from edge_agent.errors import EnrolmentFailed, LinkError
from tests.edge_agent.enrolment.makers import DEVICE, Issuer, enrolment_settings
from waybill.daemon.tls import TlsSettings

DAY_S = 86_400.0


class KeptDevice:
    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.issuer = Issuer(datetime(2027, 1, 5, tzinfo=UTC))
        self.now_s = self.issuer.now.timestamp()
        self.folder = CertificateFolder(folder / "certificates", "acme", "bus-1")
        self.certificates = UplinkCertificates(self.folder)
        self.answers = True
        self.heard = 0
        parts = EnrolmentParts(
            folder=self.folder,
            ask_region=self._ask_region,
            on_certificate=self._on_certificate,
            random=Random(seed),
            clock=lambda: self.now_s,
            exchange=lambda _settings, message, _is_answer, is_stopping: self._exchange(message),
        )
        self.loop = EnrolmentLoop(enrolment_settings(folder), DEVICE, parts)

    def _on_certificate(self) -> None:
        self.heard += 1

    def _exchange(self, message: bytes) -> bytes:
        if not self.answers:
            raise EnrolmentFailed("no answer")
        return self.issuer.grant(message)

    def _ask_region(self, message: bytes) -> None:
        if self.answers:
            self.issuer.now = datetime.fromtimestamp(self.now_s, UTC)
            self.loop.on_answer(b"an answer to something else")
            self.loop.on_answer(self.issuer.grant(message))

    def connect(self, *, works: bool = True) -> str:
        uplink = UplinkSettings(region="eu", host="h", tls=TlsSettings(ca=Path("ca")))
        shown = self.certificates.with_certificate(uplink)
        self.certificates.on_opened(shown, works)
        assert shown.tls is not None
        assert shown.tls.certificate is not None
        return shown.tls.certificate.name


@pytest.fixture
def device(tmp_path: Path) -> KeptDevice:
    return KeptDevice(tmp_path)


def test_without_a_certificate_there_is_no_connection_and_the_device_is_enrolled(device: KeptDevice) -> None:
    with pytest.raises(LinkError, match="records are kept"):
        device.connect()
    assert device.loop.step() == 5.0
    assert device.heard == 1
    assert device.connect() == "next.pem"
    assert device.connect() == "current.pem", "it worked"
    assert device.loop.outcomes == {"enrolled": 1}


def test_an_attempt_that_fails_is_made_again_later_and_later_with_the_same_key(device: KeptDevice) -> None:
    device.answers = False
    waits = [device.loop.step() for _ in range(12)]
    assert 2.5 <= waits[0] <= 5.0
    assert 1800 <= waits[-1] <= 3600
    assert device.loop.problem == "acme/bus-1 is not enrolled: no answer"
    device.answers = True
    device.loop.step()
    assert device.loop.problem == ""
    assert device.loop.outcomes == {"failed": 12, "enrolled": 1}


def test_it_is_renewed_at_two_thirds_of_its_life_and_not_before(device: KeptDevice) -> None:
    device.loop.step()
    device.connect()
    begin_s = device.now_s - 300  # valid since five minutes before it was signed
    life_s = 30 * DAY_S + 300
    device.now_s = begin_s + life_s * 2 / 3 - 60
    assert device.loop.step() > 0
    device.now_s = begin_s + life_s * (2 / 3 + JITTER_SHARE)
    assert device.loop.step() == 5.0
    assert device.loop.outcomes == {"enrolled": 1, "renewed": 1}
    assert device.connect() == "next.pem"


def test_the_devices_of_one_day_do_not_renew_in_one_hour(tmp_path: Path) -> None:
    shares = set()
    for seed in range(50):
        folder = tmp_path / str(seed)
        folder.mkdir()
        shares.add(KeptDevice(folder, seed).loop._renew_share)
    assert max(shares) - min(shares) > JITTER_SHARE / 2


def test_a_new_certificate_that_does_not_work_leaves_its_turn_to_the_one_before(device: KeptDevice) -> None:
    renewed(device)
    shown = [device.connect(works=False), device.connect(works=False), device.connect(works=False)]
    assert shown == ["next.pem", "current.pem", "next.pem"]
    assert device.connect() == "current.pem"
    assert device.connect() == "next.pem"
    assert device.folder.next() is None, "it worked, and is the current one now"


def test_a_certificate_that_has_ended_is_no_way_to_renew_so_the_claim_is_shown_again(device: KeptDevice) -> None:
    device.loop.step()
    device.connect()
    device.now_s += 31 * DAY_S
    device.issuer.now += timedelta(days=31)
    device.loop.step()
    assert device.loop.outcomes == {"enrolled": 2}


def renewed(device: KeptDevice) -> None:
    device.loop.step()
    device.connect()
    device.now_s += 25 * DAY_S
    device.loop.step()


def test_a_new_certificate_that_fails_where_the_one_before_works_is_named(device: KeptDevice) -> None:
    renewed(device)
    failing = device.folder.next()
    assert failing is not None
    assert device.connect(works=False) == "next.pem"
    assert device.certificates.problem == ""
    assert device.connect() == "current.pem"
    assert f"{failing.serial:x}" in device.certificates.problem
    assert device.connect() == "next.pem"
    assert device.certificates.problem == ""
