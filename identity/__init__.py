"""Who somebody is and who says so: names, keys, authorities. Each name is loaded when it is asked for.

So whoever asks for a name alone does not wait for the library that signs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from identity.authority import (
        CLOCK_SKEW,
        Authority,
        Issued,
        Revoked,
        common_name,
        issue_client,
        issue_device,
        issue_server,
        make_regional,
        make_root,
        read_certificates,
        regional_name,
        sign_revocation_list,
    )
    from identity.authority_folder import AuthorityFolder, IssuedCertificate
    from identity.credentials import credentials_in, write_credentials
    from identity.errors import (
        AuthorityDamaged,
        AuthorityError,
        AuthorityExists,
        AuthorityExpired,
        AuthorityFolderError,
        AuthorityMissing,
        IdentityError,
        KeyRefused,
        NameRefused,
        NotAnAuthority,
        RequestFault,
        RequestRefused,
        SealingKeyError,
        Unsealable,
    )
    from identity.names import DeviceName, PrincipalKind, PrincipalName, device_name, parse_name, principal
    from identity.requests import CertificateRequest, KeyPair, PublicKey, make_request, read_request
    from identity.sealing import Sealer, Unsealer, is_sealed, read_public_key

__all__ = [
    "CLOCK_SKEW",
    "Authority",
    "AuthorityDamaged",
    "AuthorityError",
    "AuthorityExists",
    "AuthorityExpired",
    "AuthorityFolder",
    "AuthorityFolderError",
    "AuthorityMissing",
    "CertificateRequest",
    "DeviceName",
    "IdentityError",
    "Issued",
    "IssuedCertificate",
    "KeyPair",
    "KeyRefused",
    "NameRefused",
    "NotAnAuthority",
    "PrincipalKind",
    "PrincipalName",
    "PublicKey",
    "RequestFault",
    "RequestRefused",
    "Revoked",
    "Sealer",
    "SealingKeyError",
    "Unsealable",
    "Unsealer",
    "common_name",
    "credentials_in",
    "device_name",
    "is_sealed",
    "issue_client",
    "issue_device",
    "issue_server",
    "make_regional",
    "make_request",
    "make_root",
    "parse_name",
    "principal",
    "read_certificates",
    "read_public_key",
    "read_request",
    "regional_name",
    "sign_revocation_list",
    "write_credentials",
]
_HOMES = {
    "identity.authority": (
        "CLOCK_SKEW",
        "Authority",
        "Issued",
        "Revoked",
        "common_name",
        "issue_client",
        "issue_device",
        "issue_server",
        "make_regional",
        "make_root",
        "read_certificates",
        "regional_name",
        "sign_revocation_list",
    ),
    "identity.authority_folder": ("AuthorityFolder", "IssuedCertificate"),
    "identity.credentials": ("credentials_in", "write_credentials"),
    "identity.errors": (
        "AuthorityDamaged",
        "AuthorityError",
        "AuthorityExists",
        "AuthorityExpired",
        "AuthorityFolderError",
        "AuthorityMissing",
        "IdentityError",
        "KeyRefused",
        "NameRefused",
        "NotAnAuthority",
        "RequestFault",
        "RequestRefused",
        "SealingKeyError",
        "Unsealable",
    ),
    "identity.names": ("DeviceName", "PrincipalKind", "PrincipalName", "device_name", "parse_name", "principal"),
    "identity.sealing": ("Sealer", "Unsealer", "is_sealed", "read_public_key"),
    "identity.requests": ("CertificateRequest", "KeyPair", "PublicKey", "make_request", "read_request"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
