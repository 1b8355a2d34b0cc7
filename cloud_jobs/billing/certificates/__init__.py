"""Completeness of a device's records in a period, and decisions about incomplete devices.

`certificate` is pure; `reader` and `decisions` read and write the lake.
"""

from cloud_jobs.billing.certificates.certificate import (
    CertificateState,
    DeviceCertificate,
    DeviceCounts,
    Observed,
    certify,
    listed,
)
from cloud_jobs.billing.certificates.decisions import BadDecision, ClosedState, Decision, decide, decisions, withdraw
from cloud_jobs.billing.certificates.reader import (
    OBSERVED_COLUMNS,
    certificates_from,
    certificates_of_spans,
    observed_usage,
    refused_fences,
    unmetered_records,
)

__all__ = [
    "OBSERVED_COLUMNS",
    "BadDecision",
    "CertificateState",
    "ClosedState",
    "Decision",
    "DeviceCertificate",
    "DeviceCounts",
    "Observed",
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
