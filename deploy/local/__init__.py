"""The local stack: real servers on loopback, started, watched and stopped by this process."""

from deploy.local.authority import LocalAuthority
from deploy.local.credentials import stack_access
from deploy.local.daemon import DaemonProcess
from deploy.local.enrolment_broker import EnrolmentBroker, EnrolmentBrokerFiles
from deploy.local.errors import (
    FolderDamaged,
    FolderNotOurs,
    FolderOfAnother,
    LinkControlError,
    LocalStackError,
    ProgramMissing,
    ServerFailed,
    StackInUse,
    StackNotRunning,
)
from deploy.local.folder import empty
from deploy.local.link import CuttableLink
from deploy.local.link_server import CuttableLinks
from deploy.local.mosquitto import MosquittoBroker, MosquittoSecurity, TlsFiles
from deploy.local.object_store import LakePlace, ObjectStore
from deploy.local.ports import PortBook, free_port
from deploy.local.pulsar import PulsarCluster, PulsarSecurity, PulsarSettings
from deploy.local.server import Server, ServerState, wait_all
from deploy.local.server_health import http_health
from deploy.local.spark_cluster import SparkCluster, SparkClusterSettings, SparkMaster, SparkWorker
from deploy.local.stack import LocalStack, StackSettings
from deploy.local.stack_operator import StackOperator, stack_operator
from deploy.local.stack_state import StackState
from waybill.identity.broker_conf import MosquittoSettings

__all__ = [
    "CuttableLink",
    "CuttableLinks",
    "DaemonProcess",
    "EnrolmentBroker",
    "EnrolmentBrokerFiles",
    "FolderDamaged",
    "FolderNotOurs",
    "FolderOfAnother",
    "LakePlace",
    "LinkControlError",
    "LocalAuthority",
    "LocalStack",
    "LocalStackError",
    "MosquittoBroker",
    "MosquittoSecurity",
    "MosquittoSettings",
    "ObjectStore",
    "PortBook",
    "ProgramMissing",
    "PulsarCluster",
    "PulsarSecurity",
    "PulsarSettings",
    "Server",
    "ServerFailed",
    "ServerState",
    "SparkCluster",
    "SparkClusterSettings",
    "SparkMaster",
    "SparkWorker",
    "StackInUse",
    "StackNotRunning",
    "StackOperator",
    "StackSettings",
    "StackState",
    "TlsFiles",
    "empty",
    "free_port",
    "http_health",
    "stack_access",
    "stack_operator",
    "wait_all",
]
