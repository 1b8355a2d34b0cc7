"""What is in each image, and what is left out of it."""

from __future__ import annotations

from dataclasses import dataclass

_PYTHON = ("ca-certificates", "libpython3.11-stdlib", "python3.11-minimal", "tzdata")

_TESTS = ("*/tests/*", "*/test/*", "*/testing/*")
_INSTALLER = ("*.dist-info/RECORD", "*.dist-info/direct_url.json")
_SOURCES_OF_LIBRARIES = ("*.pyi", "*.pxd", "*.pyx", "*.h", "*.hpp", "*.a", "*.lib")

KEPT_TESTS = ("numpy/testing/*", "pandas/testing/*", "pandas/_testing/*", "pyspark/testing/*")
"""Modules that are imported although their folder is named for tests."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image: `Containerfile.NAME` beside this module says how its layers are put together."""

    name: str
    title: str
    extra: str
    """The extra of pyproject.toml that it installs; without one it is Pulsar's server."""
    commands: tuple[str, ...]
    """Those of `[project.scripts]` that it has."""
    debian: tuple[str, ...]
    """Debian packages; what they depend on comes with them."""
    java: bool = False
    """Whether it has a Java of `JAVA_MODULES`, linked from Debian's JDK."""
    limit_mb: int
    """The largest size, unpacked."""
    without: tuple[str, ...] = ()
    """Files of wheels that it never reads, by patterns of paths in site-packages."""


IMAGES = {
    image.name: image
    for image in (
        Image(
            name="edge-agent",
            title="Waybill's agent on a vehicle",
            extra="edge",
            commands=("edge-agent",),
            debian=_PYTHON,
            limit_mb=150,
        ),
        Image(
            name="gateway",
            title="Waybill's region: gateway, access daemon and MQTT broker, alerts, notifier",
            extra="gateway",
            commands=("fleet-gateway", "waybill"),
            debian=(*_PYTHON, "libstdc++6", "mosquitto"),
            limit_mb=280,
        ),
        Image(
            name="centre",
            title="Waybill's centre: Spark driver and executors, jobs, console; and canaries, which read its tables",
            extra="local",
            commands=("cloud-jobs", "cloud-jobs-python", "waybill"),
            debian=(*_PYTHON, "coreutils", "libstdc++6", "mosquitto", "util-linux"),
            java=True,
            limit_mb=1000,
            without=(
                # Spark without Hive, Connect, machine learning, RocksDB and its shell: no job asks for them
                "pyspark/bin/*",
                "pyspark/sbin/*",
                "pyspark/examples/*",
                "pyspark/data/*",
                "pyspark/jars/connect-repl/*",
                "pyspark/jars/rocksdbjni-*",
                "pyspark/jars/spark-connect_*",
                "pyspark/jars/spark-mllib_*",
                "pyspark/jars/breeze*",
                "pyspark/jars/spire*",
                "pyspark/jars/cats-kernel*",
                "pyspark/jars/spark-hive*",
                "pyspark/jars/hive-exec-*",
                "pyspark/jars/hive-metastore-*",
                "pyspark/jars/derby*",
                "pyspark/jars/datanucleus-*",
                "pyspark/jars/scala-compiler-*",
                "pyspark/jars/*-osx-*",
                "pyspark/jars/*-windows-*",
                # Arrow for programs in C++, and its network protocol
                "pyarrow/include/*",
                "pyarrow/src/*",
                "pyarrow/*.pxi",
                "pyarrow/libarrow_flight.so*",
                "pyarrow/_flight.*",
                "pyarrow/_substrait.*",
                "pyarrow/libarrow_python.so",
                "pyarrow/libarrow_python.so.*.*.*",
            ),
        ),
    )
}

PULSAR = Image(
    name="pulsar",
    title="Apache Pulsar as the local stack runs it, for the proof on a cluster",
    extra="",
    commands=(),
    debian=("libstdc++6", "tzdata", "zlib1g"),
    java=True,
    limit_mb=500,
)
"""No part of Waybill: `make images IMAGES=pulsar` builds it, plain `make images` does not."""

JAVA_MODULES = (
    # what `jdeps` finds in Spark's jars, and what they load by name
    "java.base",
    "java.compiler",
    "java.desktop",
    "java.instrument",
    "java.logging",
    "java.management",
    "java.naming",
    "java.net.http",
    "java.rmi",
    "java.scripting",
    "java.security.jgss",
    "java.security.sasl",
    "java.sql",
    "java.transaction.xa",
    "java.xml",
    "jdk.crypto.ec",
    "jdk.httpserver",
    "jdk.incubator.vector",
    "jdk.jfr",
    "jdk.management",
    "jdk.naming.dns",
    "jdk.net",
    "jdk.nio.mapmode",
    "jdk.security.auth",
    "jdk.security.jgss",
    "jdk.unsupported",
    "jdk.zipfs",
)
JDK = ("openjdk-17-jdk-headless",)

LEFT_OUT_OF_WHEELS = (*_INSTALLER, *_TESTS, *_SOURCES_OF_LIBRARIES)

PROGRAMS = (
    "usr/bin/python3.11",
    "usr/sbin/mosquitto",
    # a canary starts its broker and its agent by this, so that they end with it
    "usr/bin/setpriv",
    # Hadoop sets and reads permissions by these, where it writes checkpoints into a folder
    "bin/chmod",
    "bin/ls",
    "bin/readlink",
)
"""The programs of Debian's packages that an image has, if it has their package. No shell is among them."""

LEFT_OUT_OF_DEBIAN = (
    # package management, log-ins, services of a whole machine
    "var/*",
    "usr/share/dpkg/*",
    "usr/share/debconf/*",
    "usr/share/perl5/*",
    "usr/lib/dpkg/*",
    "etc/dpkg/*",
    "etc/apt/*",
    "etc/debconf.conf",
    "etc/pam.d/*",
    "etc/security/*",
    "etc/init.d/*",
    "lib/systemd/*",
    "usr/lib/systemd/*",
    "lib/init/*",
    "lib/lsb/*",
    "lib/*/security/*",
    # `etc/ssl/certs` has the authorities as one file
    "usr/share/ca-certificates/*",
    # for people: pages, translations. The licences of packages stay.
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/lintian/*",
    "usr/share/bug/*",
    "usr/share/zoneinfo/right/*",
    "usr/share/zoneinfo/posix/*",
    # conversions between character sets that Python has itself
    "usr/lib/*/gconv/*",
    "usr/lib/python3.11/lib2to3/*",
    "usr/lib/python3.11/pydoc_data/*",
    "usr/lib/python3.11/idlelib/*",
    "usr/lib/python3.11/distutils/*",
)

KEPT_OF_DOCUMENTATION = ("usr/share/doc/*/copyright",)
