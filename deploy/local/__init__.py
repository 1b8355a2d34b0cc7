"""The local stack: real servers on loopback, started, supervised and stopped by one process."""

from deploy.local.credentials import LocalAuthority, stack_access, stack_operator
from deploy.local.errors import (
    FolderNotOurs,
    LinkControlError,
    LocalStackError,
    ServerFailed,
    StackInUse,
    StackNotRunning,
)
from deploy.local.folder import empty
from deploy.local.links import CuttableLink, CuttableLinks
from deploy.local.mosquitto import EnrolmentBroker, EnrolmentBrokerFiles, MosquittoBroker, MosquittoSecurity, TlsFiles
from deploy.local.object_store import LakePlace, ObjectStore
from deploy.local.ports import PortBook, free_port
from deploy.local.pulsar import PulsarCluster, PulsarSettings
from deploy.local.server import DaemonProcess, Server, ServerState, http_health, wait_all
from deploy.local.spark_cluster import SparkCluster
from deploy.local.stack import LocalStack, StackSettings
from deploy.local.stack_state import StackState
from waybill.identity.broker_conf import MosquittoSettings

__all__ = [
    "CuttableLink",
    "CuttableLinks",
    "DaemonProcess",
    "EnrolmentBroker",
    "EnrolmentBrokerFiles",
    "FolderNotOurs",
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
    "PulsarCluster",
    "PulsarSettings",
    "Server",
    "ServerFailed",
    "ServerState",
    "SparkCluster",
    "StackInUse",
    "StackNotRunning",
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
