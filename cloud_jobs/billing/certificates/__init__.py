"""Does the centre account for everything that a device made in a period, and who decided where the device did not say?

`certificate`, `streams` and `decision` are pure; `reader`, `counting` and `decisions` read and write the lake.
"""

from cloud_jobs.billing.certificates.certificate import (
    CertificateState,
    DeviceCertificate,
    DeviceCounts,
    HeardRecords,
    certify,
)
from cloud_jobs.billing.certificates.counting import observed_usage
from cloud_jobs.billing.certificates.decision import ClosedState, Decision
from cloud_jobs.billing.certificates.decisions import decide, decisions, withdraw
from cloud_jobs.billing.certificates.doubts import Observed, listed
from cloud_jobs.billing.certificates.errors import BadDecision
from cloud_jobs.billing.certificates.reader import (
    UnmeteredRecords,
    certificates_from,
    certificates_of_spans,
    refused_fences,
    unmetered_records,
)

__all__ = [
    "BadDecision",
    "CertificateState",
    "ClosedState",
    "Decision",
    "DeviceCertificate",
    "DeviceCounts",
    "HeardRecords",
    "Observed",
    "UnmeteredRecords",
    "certificates_from",
    "certificates_of_spans",
    "certify",
    "decide",
    "decisions",
    "listed",
    "observed_usage",
    "refused_fences",
    "unmetered_records",
    "withdraw",
]
