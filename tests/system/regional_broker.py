"""A region's broker with certificates and rules, and files of its clients."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deploy.local import LocalAuthority, MosquittoBroker, MosquittoSecurity, TlsFiles
from waybill.identity.authority import KeyPair
from waybill.identity.broker_conf import broker_rules
from waybill.identity.pki_folder import write_credentials


class RegionalBroker:
    """A broker as the stack starts it, and its authority."""

    def __init__(self, folder: Path) -> None:
        self.authority = LocalAuthority(folder / "authority")
        security = MosquittoSecurity(
            tls=self.authority.server("broker@eu", "eu"),
            rules=broker_rules(0, "eu", ["eu-1"], ()),
            probe=self.authority.client("probe@eu", "eu"),
        )
        self.server = MosquittoBroker("eu", folder / "eu", security=security)
        self.server.start()
        self.server.wait()

    def said(self, text: str) -> int:
        return self.server.log.read_text(encoding="utf-8").count(text)

    def refused_publications(self) -> Counter[str]:
        """How many publications the broker refused, by the last level of their topic."""
        text = self.server.log.read_text(encoding="utf-8")
        found = re.findall(r"^\S+: (?:x(\d+) )?Denied PUBLISH from \S+ \(.*?'.*?([a-z-]*)', ", text, re.MULTILINE)
        counts = Counter[str]()
        for times, channel in found:
            counts[channel] += int(times or 1)
        return counts

    def ending(self, folder: Path, name: str, *, in_s: float) -> TlsFiles:
        """See `ending`."""
        return ending(self.authority, folder, name, in_s=in_s)


def ending(authority: LocalAuthority, folder: Path, name: str, *, in_s: float) -> TlsFiles:
    """A client's files in eu whose certificate ends so soon, or has ended; of the key that the folder has."""
    region, now, soon = authority.region("eu"), datetime.now(UTC), timedelta(seconds=in_s)
    began = min(now, now + soon - timedelta(seconds=1))
    kept = folder / "key.pem"
    key = KeyPair.from_pem(kept.read_bytes()) if kept.exists() else KeyPair.generate()
    issued = region.certify(key, name, now=began, lifetime=now + soon - began)
    files = write_credentials(folder, root_pem=region.root_pem, chain_pem=issued.chain_pem, key=key)
    return TlsFiles.model_validate(files.model_dump())
