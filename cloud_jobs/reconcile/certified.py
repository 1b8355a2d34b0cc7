"""Station invoiced: the certificates of the closings that documents are of, beside what these closings rest on."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator

from cloud_jobs.billing.register.closing import Closing
from cloud_jobs.billing.register.rows import canonical, digest_of
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.reconcile.comparison import Comparison, Station


def compare_certificates(register: Register, closings: Collection[Closing]) -> Iterator[Comparison]:
    """The certificates of closings of one period are those that they were made with. Raises LakeError."""
    texts: dict[tuple[str, str], list[tuple[str, str, str]]] = defaultdict(list)
    for row in register.certificates_of(closings).to_pylist():
        texts[row["payer"], row["run"]].append((row["tenant"], row["device"], row["certificate"]))
    for one in closings:
        # the same row twice is one certificate
        found = sorted({*texts[one.key.payer, one.run]})
        is_same = digest_of(canonical([_digest(text) for _, _, text in found])) == one.certificates_digest
        note = "" if is_same else f"{len(found):,} certificates that are not those of the closing {one.id}"
        yield Comparison(
            Station.INVOICED, "closings with their certificates", one.key.payer, 1, 1 if is_same else 0, note
        )


def _digest(text: str) -> str:
    """Of what a certificate says, whatever it says of its own digest."""
    content = json.loads(text)
    content.pop("digest", None)
    return hashlib.sha256(canonical(content).encode()).hexdigest()
