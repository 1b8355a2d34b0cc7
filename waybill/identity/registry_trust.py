"""Whose signatures of registry entries are taken: settings of everybody who reads the device registry."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from waybill.identity.followed_operators import FollowedOperators
from waybill.identity.operator_files import read_operators
from waybill.identity.registry_messages import CheckSigned
from waybill.identity.registry_signing import check_by
from waybill.settings import Settings

__all__ = ["RegistryTrust"]


class RegistryTrust(Settings):
    """`operators`: the file of the operators' public keys that are trusted. `unsigned`: take what nobody signed.

    One of them is said: that everybody is trusted is never a default.
    """

    operators: Path | None = None
    unsigned: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.unsigned == (self.operators is not None):
            raise ValueError(
                "say who may change the device registry: operators, the file of the operators' public keys, "
                "or unsigned = true, which takes whatever is published; one of them"
            )
        return self

    def followed(self) -> FollowedOperators | None:
        """The trusted keys, for who runs for long; None: nothing is held against anything. Raises SettingsError."""
        return None if self.operators is None else FollowedOperators(self.operators)

    def check_signed(self) -> CheckSigned | None:
        """What holds signatures against the trusted keys; None: nothing is held against anything.

        Raises SettingsError if the file of the keys cannot be used.
        """
        return None if self.operators is None else check_by(read_operators(self.operators))
