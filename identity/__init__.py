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
    from identity.authority_folder import (
        AuthorityFolder,
        IssuedCertificate,
    )
    from identity.credentials import (
        credentials_in,
        write_credentials,
    )
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
        OperatorKeyRefused,
        RequestFault,
        RequestRefused,
        SealingKeyError,
        SignatureFault,
        SignatureRefused,
        Unsealable,
    )
    from identity.names import (
        DeviceName,
        PrincipalKind,
        PrincipalName,
        device_name,
        parse_name,
        principal,
    )
    from identity.operator_files import (
        NewOperator,
        operators_toml,
        read_operator_key,
        read_operators,
        trust_operator,
        trusted_key,
        write_operator,
    )
    from identity.operator_keys import (
        ANY,
        OperatorKeys,
        Scope,
        TrustedKey,
        key_id_of,
    )
    from identity.publication_id import (
        drawn_at,
        is_far_ahead,
        is_publication_id,
        next_publication_id,
    )
    from identity.requests import (
        CertificateRequest,
        KeyPair,
        PublicKey,
        make_request,
        read_request,
    )
    from identity.sealing import (
        Sealer,
        Unsealer,
        is_sealed,
        read_public_key,
    )
    from identity.signatures import (
        OperatorKey,
        Publication,
        PublishedBy,
        checked_reason,
        encoded_signature,
        is_signature,
        sign_publication,
        signature_of,
        verify_publication,
    )
    from identity.names import DeviceName, PrincipalKind, PrincipalName, device_name, parse_name, principal
    from identity.requests import CertificateRequest, KeyPair, PublicKey, make_request, read_request
    from identity.sealing import Sealer, Unsealer, is_sealed, read_public_key
    from identity.token_issuer import TokenIssuer
    from identity.tokens import InvalidToken, TokenKey

__all__ = [
    "ANY",
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
    "InvalidToken",
    "Issued",
    "IssuedCertificate",
    "KeyPair",
    "KeyRefused",
    "NameRefused",
    "NewOperator",
    "NotAnAuthority",
    "OperatorKey",
    "OperatorKeyRefused",
    "OperatorKeys",
    "PrincipalKind",
    "PrincipalName",
    "PublicKey",
    "Publication",
    "PublishedBy",
    "RequestFault",
    "RequestRefused",
    "Revoked",
    "Scope",
    "Sealer",
    "SealingKeyError",
    "SignatureFault",
    "SignatureRefused",
    "TrustedKey",
    "Unsealable",
    "Unsealer",
    "checked_reason",
    "TokenIssuer",
    "TokenKey",
    "Unsealable",
    "Unsealer",
    "common_name",
    "credentials_in",
    "device_name",
    "drawn_at",
    "encoded_signature",
    "is_far_ahead",
    "is_publication_id",
    "is_sealed",
    "is_signature",
    "issue_client",
    "issue_device",
    "issue_server",
    "key_id_of",
    "make_regional",
    "make_request",
    "make_root",
    "next_publication_id",
    "operators_toml",
    "parse_name",
    "principal",
    "read_certificates",
    "read_operator_key",
    "read_operators",
    "read_public_key",
    "read_request",
    "regional_name",
    "sign_publication",
    "sign_revocation_list",
    "signature_of",
    "trust_operator",
    "trusted_key",
    "verify_publication",
    "write_credentials",
    "write_operator",
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
        "OperatorKeyRefused",
        "RequestFault",
        "RequestRefused",
        "SealingKeyError",
        "SignatureFault",
        "SignatureRefused",
        "Unsealable",
    ),
    "identity.names": ("DeviceName", "PrincipalKind", "PrincipalName", "device_name", "parse_name", "principal"),
    "identity.operator_files": (
        "NewOperator",
        "operators_toml",
        "read_operator_key",
        "read_operators",
        "trust_operator",
        "trusted_key",
        "write_operator",
    ),
    "identity.operator_keys": ("ANY", "OperatorKeys", "Scope", "TrustedKey", "key_id_of"),
    "identity.publication_id": ("drawn_at", "is_far_ahead", "is_publication_id", "next_publication_id"),
    "identity.requests": ("CertificateRequest", "KeyPair", "PublicKey", "make_request", "read_request"),
    "identity.sealing": ("Sealer", "Unsealer", "is_sealed", "read_public_key"),
    "identity.signatures": (
        "OperatorKey",
        "Publication",
        "PublishedBy",
        "checked_reason",
        "encoded_signature",
        "is_signature",
        "sign_publication",
        "signature_of",
        "verify_publication",
    ),
    "identity.token_issuer": ("TokenIssuer",),
    "identity.tokens": ("InvalidToken", "TokenKey"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
