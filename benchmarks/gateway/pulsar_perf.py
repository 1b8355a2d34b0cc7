"""`pulsar-perf produce`, Pulsar's own benchmark, from the server's distribution."""

from __future__ import annotations

import re
import subprocess
from tempfile import gettempdir

from deploy.local.jvm import java, pulsar_home
from waybill.pulsar.pulsar_client import PulsarAccess


def perf_rate(service_url: str, access: PulsarAccess, topic: str, size: int, seconds: int) -> float:
    """Messages a second of that size, as many as go, with Pulsar's own settings for batching."""
    home = pulsar_home()
    packages = ("java.base/java.nio", "java.base/jdk.internal.misc")
    opened = [word for package in packages for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
    arguments = [
        "--service-url",
        service_url,
        "--size",
        str(size),
        "--rate",
        "1000000",
        # Without a bound it takes more messages than its memory holds, and stands still for ever.
        "--max-outstanding",
        "1000",
        "--test-duration",
        str(seconds),
    ]
    if access.token_file is not None:
        arguments += ["--auth-plugin", "org.apache.pulsar.client.impl.auth.AuthenticationToken"]
        arguments += ["--auth-params", access.token_file.as_uri()]
    if access.tls_ca is not None:
        arguments += ["--trust-cert-file", str(access.tls_ca)]
    done = subprocess.run(
        [
            *(java(), "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", *opened),
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dorg.apache.pulsar.shade.io.netty.tryReflectionSetAccessible=true",
            f"-Dlog4j.configurationFile={home / 'conf/log4j2.yaml'}",
            "-Dpulsar.log.appender=Console",
            # it makes a file there all the same
            f"-Dpulsar.log.dir={gettempdir()}",
            *(
                "-cp",
                f"{home}/lib/*",
                "org.apache.pulsar.testclient.PulsarPerfTestTool",
                str(home / "conf/client.conf"),
            ),
            *("produce", *arguments, topic),
        ],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    rates = re.findall(r"Throughput produced:.*?--- +([\d.]+) msg/s", done.stdout)
    if not rates:
        raise RuntimeError(f"pulsar-perf says nothing of its rate:\n{(done.stdout + done.stderr)[-2000:]}")
    # It prints the rate of each three seconds: the first ones are those in which the JVM becomes fast.
    return max(float(rate) for rate in rates)
