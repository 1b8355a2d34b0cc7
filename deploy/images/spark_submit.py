"""Spark's `bin/spark-submit` and its entry points of drivers and executors on Kubernetes, for an image without a shell.

Spark's own are shell scripts. `make images` puts this file in their place; it needs nothing but Python and Java.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

_LAUNCHER = "org.apache.spark.launcher.Main"
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = "SPARK_JAVA_OPT_"
_EXECUTORS = "WAYBILL_EXECUTORS"
"""The labels of a driver's executors, if it runs in a pod."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXECUTOR_WORDS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def submit_command(arguments: Sequence[str], java: str, jars: str) -> list[str]:
    """What Spark's launcher says should be run for these arguments of `spark-submit`."""
    words = [java, "-Xmx128m", "-cp", jars, _LAUNCHER, _SUBMIT, *arguments]
    printed = subprocess.run(words, stdout=subprocess.PIPE, timeout=60, check=True).stdout
    # After an empty line, each word ends with a zero byte.
    return printed.decode().lstrip("\0\n").removesuffix("\0").split("\0")


def driver_arguments(environment: Mapping[str, str], given: Sequence[str]) -> list[str]:
    """Arguments of `spark-submit` in the pod of a driver that was submitted in cluster mode, as an operator does."""
    address = environment["SPARK_DRIVER_BIND_ADDRESS"]
    return ["--conf", f"spark.driver.bindAddress={address}", "--deploy-mode", "client", *given]


def deletion(labels: str, account: Path) -> Request:
    """The request that deletes all executors with these labels, by the rights of a pod's account."""
    namespace, token = ((account / name).read_text(encoding="ascii") for name in ("namespace", "token"))
    address = f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/pods?labelSelector={quote(labels)}"
    return Request(address, method="DELETE", headers={"Authorization": f"Bearer {token}"})


def executor_command(environment: Mapping[str, str], java: str, jars: str) -> list[str]:
    """How an executor is started, by the variables that Spark's driver gives to its pod."""
    options = sorted((int(name.removeprefix(_OPTION)), name) for name in environment if name.startswith(_OPTION))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    words = [word for option, name in _EXECUTOR_WORDS.items() for word in (option, environment[name])]
    given = [environment[name] for _, name in options]
    return [java, *given, f"-Xms{memory}", f"-Xmx{memory}", "-cp", jars, _EXECUTOR, *words]


def main() -> None:
    home = os.environ.get("SPARK_HOME") or str(Path(__file__).resolve().parents[1])
    os.environ["SPARK_HOME"] = home
    os.environ.setdefault("SPARK_SCALA_VERSION", "2.13")  # else the launcher looks for folders of a build
    java, jars = f"{os.environ['JAVA_HOME']}/bin/java", f"{home}/jars/*"
    if sys.argv[1:] == ["executor"]:
        command = executor_command(os.environ, java, jars)
    elif sys.argv[1:2] == ["driver"]:
        command = submit_command(driver_arguments(os.environ, sys.argv[2:]), java, jars)
    else:
        if labels := os.environ.get(_EXECUTORS):
            # A driver that was killed leaves its executors: they stay as long as its pod, which starts it again.
            trusted = ssl.create_default_context(cafile=_ACCOUNT / "ca.crt")
            urlopen(deletion(labels, _ACCOUNT), timeout=30, context=trusted).close()  # noqa: S310 - the API server
        command = submit_command(sys.argv[1:], java, jars)
    os.execv(command[0], command)  # noqa: S606 - it becomes Java, with our own list of words


if __name__ == "__main__":
    main()
