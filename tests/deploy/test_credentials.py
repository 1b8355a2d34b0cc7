"""Each role of the stack's topology has its token, and brokers have no more rights than it says."""

import stat
from pathlib import Path

import pytest

from deploy.local import LocalStack, PortBook, stack_access
from deploy.local.credentials import LocalAuthority, StackCredentials
from deploy.local.stack import DEFAULT_TOPOLOGY
from geo.replication import Topology
from waybill.identity.tokens import read_claims
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import load


def credentials(folder: Path, topology: Topology, life_s: float = 600) -> StackCredentials:
    return StackCredentials(
        folder, LocalAuthority(folder / "access"), topology, PortBook(folder / "ports.json"), life_s
    )


def test_each_role_has_a_token_that_names_it_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    made = credentials(tmp_path, load(Topology, DEFAULT_TOPOLOGY))
    assert {"operator", "jobs", "gateway-eu", "gateway-us", "access-eu", "replication-hq"} <= set(made.roles)
    for role in made.roles:
        file = made.access(role).token_file
        assert file is not None
        assert read_claims(file.read_text()).role == role
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ValueError, match="no role 'gateway-mars' in this stack; it has access-eu"):
        made.access("gateway-mars")


def test_another_process_finds_the_access_of_a_stack_by_its_folder(tmp_path: Path) -> None:
    assert stack_access(tmp_path) == PulsarAccess()
    made = credentials(tmp_path, load(Topology, DEFAULT_TOPOLOGY))
    made.write_access_file()
    assert stack_access(tmp_path, "jobs") == made.access("jobs")


def test_an_insecure_stack_shows_nothing(tmp_path: Path) -> None:
    assert LocalStack(tmp_path).access("anybody") == PulsarAccess()
