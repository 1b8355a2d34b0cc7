"""The lines of a Pulsar broker's configuration that make it ask everybody who they are, and for a right. Pure."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from waybill.identity.broker_conf import ServerFiles
from waybill.identity.tokens import AUDIENCE

__all__ = ["pulsar_security"]

_PLUGINS = "org.apache.pulsar"


def pulsar_security(
    files: ServerFiles,
    ca: Path,
    *,
    issuer: str,
    broker_token: Path,
    superusers: Collection[str],
    ports: tuple[int, int],
    key_refresh_s: int,
) -> dict[str, str | int]:
    """No port without TLS, nobody without a token, nothing without a right. `ports`: of brokers, and of the web.

    Tokens are checked by Pulsar's OpenID Connect provider, which asks the issuer for its keys again and again; the
    usual one reads a single key when it starts (apache/pulsar#8152). `key_refresh_s`: how old keys may be at a check.
    """
    return {
        "brokerServicePort": "",
        "webServicePort": "",
        "brokerServicePortTls": ports[0],
        "webServicePortTls": ports[1],
        "tlsEnabled": "true",
        "tlsCertificateFilePath": str(files.certificate),
        "tlsKeyFilePath": str(files.key),
        "tlsTrustCertsFilePath": str(ca),
        # A renewed certificate is read without a restart.
        "tlsCertRefreshCheckDurationSec": 5,
        "tlsHostnameVerificationEnabled": "true",
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": str(ca),
        "brokerClientAuthenticationPlugin": f"{_PLUGINS}.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": broker_token.as_uri(),
        "authenticationEnabled": "true",
        "authenticationProviders": f"{_PLUGINS}.broker.authentication.oidc.AuthenticationProviderOpenID",
        # Between two looks at the tokens of live connections: one that has expired is asked for anew.
        "authenticationRefreshCheckSeconds": 10,
        "openIDAllowedTokenIssuers": issuer,
        "openIDAllowedAudiences": AUDIENCE,
        "openIDTokenIssuerTrustCertsFilePath": str(ca),
        # A key that is retired is refused after so long; without the issuer the keys that are known count for a day.
        "openIDCacheRefreshAfterWriteSeconds": key_refresh_s,
        "openIDCacheExpirationSeconds": 86_400,
        "openIDKeyIdCacheMissRefreshSeconds": 1,
        "authorizationEnabled": "true",
        "superUserRoles": ",".join(sorted(superusers)),
        # A topic policy is a message in a topic of the namespace itself: it could make a cluster delete a topic.
        "topicLevelPoliciesEnabled": "false",
        # The topology names every topic, and `apply` creates it.
        "allowAutoTopicCreation": "false",
        "authenticateMetricsEndpoint": "true",
    }
