#!/usr/bin/env bash
# Makes a machine ready for Waybill: system packages, the virtual environment, the console's scripts, Pulsar's server,
# rules of invoices, Delta for Spark, an S3 server, promtool.
# Each step looks first and does nothing where its work is already there, so a second run takes a second.
#
#   deploy/bootstrap.sh            everything (what `make setup` calls)
#   deploy/bootstrap.sh python     the virtual environment only
#   deploy/bootstrap.sh STEP       console, pulsar, invoice-rules, delta, helm, package-tools, image-tools or kubernetes-tools only
set -euo pipefail
cd "$(dirname "$0")/.."

PULSAR_VERSION=4.0.8
VERSITYGW_VERSION=1.8.0
HELM_VERSION=3.18.6
CACHE=${WAYBILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/waybill}

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
fail() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }

# --- system packages -----------------------------------------------------------------------------------------------
# A command that must exist, and the Debian package that brings it.
missing=()
need() { PATH="$PATH:/usr/sbin" command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }

find_python() {
  for name in python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null 2>&1 && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"; return
    fi
  done
}

java_is_17() { command -v java >/dev/null 2>&1 && java -version 2>&1 | head -1 | grep -qE '"(17|21)\.'; }

need_system_packages() {
  need mosquitto mosquitto
  need mosquitto_pub mosquitto-clients
  need mvn maven
  need make make
  need chromium chromium
  need systemd-analyze systemd
  java_is_17 || missing+=(openjdk-17-jre-headless)
  [ -n "$(find_python)" ] || missing+=(python3 python3-venv)
  if [ -n "$(find_python)" ] && ! "$(find_python)" -c 'import ensurepip, venv' 2>/dev/null; then missing+=(python3-venv); fi
}

# What `make packages` and the test of the installed package need; `make test` needs none of it.
need_package_tools() {
  need dpkg-deb dpkg
  need x86_64-linux-gnu-strip binutils-x86-64-linux-gnu
  need aarch64-linux-gnu-strip binutils-aarch64-linux-gnu
  need mmdebstrap mmdebstrap
}

# What `make images` needs.
need_image_tools() {
  need buildah buildah
  need mmdebstrap mmdebstrap
}

# What the cluster of `make kubernetes` needs; its other programs are built by deploy/kubernetes/cluster/build.sh.
need_kubernetes_tools() {
  need containerd containerd
  need runc runc
  need etcd etcd-server
  need iptables iptables
  need ipset ipset
  need conntrack conntrack
  need socat socat
  [ -x /usr/lib/cni/ptp ] || missing+=(containernetworking-plugins)
  go_minor >/dev/null || fail "Go 1.25 or newer is needed to build Kubernetes"
}

install_missing() {
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then as_root=(sudo); else
      fail "these packages are missing and there is no right to install them; run: sudo apt-get install ${missing[*]}"
    fi
  fi
  command -v apt-get >/dev/null || fail "install these with your system's package manager: ${missing[*]} (Java 17 or 21)"
  say "installing system packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  # A newer system has Java 21 in the place of 17; Pulsar and Spark run on both.
  if ! apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
    missing=("${missing[@]/openjdk-17-jre-headless/openjdk-21-jre-headless}")
  fi
  # Debian starts a broker of its own when it installs one; ours is started by the stack on its own ports.
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# --- the virtual environment ---------------------------------------------------------------------------------------
install_python() {
  local python stamp
  python=$(find_python); [ -n "$python" ] || fail "Python 3.11 or newer is needed; run: sudo apt-get install python3 python3-venv"
  stamp=$(cat requirements-build.txt requirements.txt pyproject.toml | sha256sum | cut -d' ' -f1)
  [ "$(cat .venv/.waybill-stamp 2>/dev/null)" = "$stamp" ] && return
  say "making the virtual environment .venv ($("$python" --version))"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  local pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check)
  # The project was called waybill once, and a stranger's package still is.
  "${pip[@]}" uninstall --yes waybill 2>/dev/null
  # Without build isolation: pip would fetch what builds a package without a hash.
  "${pip[@]}" install --require-hashes -r requirements-build.txt
  "${pip[@]}" install --require-hashes --no-build-isolation -r requirements.txt
  "${pip[@]}" install --no-deps --no-build-isolation -e .
  echo "$stamp" > .venv/.waybill-stamp
}

# --- the console's scripts, built by Vite ------------------------------------------------------------------------------
# npm holds each package against the hashes of package-lock.json.
node_is_new() { command -v npm >/dev/null 2>&1 && node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)'; }

build_console() {
  local stamp
  stamp=$(cd console/web && cat package-lock.json package.json ./*.ts ./*.mjs tsconfig.json src/* public/* | sha256sum | cut -d' ' -f1)
  [ "$(cat console/static/.stamp 2>/dev/null)" = "$stamp" ] && return
  if ! node_is_new; then
    # All but the pictures of the console works without it, so this is no reason to fail.
    say "no maps in the console: they need Node 20.19 or newer (later: make setup)"
    return
  fi
  say "building the console's scripts with Node $(node --version)"
  (cd console/web && npm ci --silent --no-audit --no-fund && npm run build --silent >/dev/null)
  echo "$stamp" > console/static/.stamp
}

# --- artifacts of Maven, each held against a digest of this repository --------------------------------------------------
PULSAR_SHA512=65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525be35352171befe7b0011176330aab29bd0a6c8a0f2f0646641af46d2e33cbd6

# fetch_artifact GROUP:NAME:VERSION[:TYPE:CLASSIFIER] SHA512 FOLDER
fetch_artifact() {
  local name version type classifier file
  IFS=: read -r _ name version type classifier <<< "$1"
  file="$3/$name-$version${classifier:+-$classifier}.${type:-jar}"
  mvn -q -B dependency:copy -Dartifact="$1" -DoutputDirectory="$3"
  echo "$2  $file" | sha512sum --check --status && return
  rm -rf "$3"
  fail "$1 is not the file that was released: its SHA-512 differs from the one in deploy/bootstrap.sh. It was removed." \
    "Remove it from Maven's local repository too (~/.m2/repository), and find out who changed it before you run this again."
}

# fetch_set FOLDER NAME TEXT: the artifacts of the array NAME_JARS, with the digests of NAME_SHA512, into a folder of the cache
fetch_set() {
  local -n jars="$2_JARS" digests="$2_SHA512"
  local folder="$CACHE/$1" at work
  [ "$(cat "$folder/.artifacts" 2>/dev/null)" = "${jars[*]}" ] && return
  say "fetching $3"
  work=$(mktemp -d "$CACHE/$1.XXXXXX")
  for at in "${!jars[@]}"; do fetch_artifact "${jars[at]}" "${digests[at]}" "$work"; done
  echo "${jars[*]}" > "$work/.artifacts"
  chmod 755 "$work"
  rm -rf "$folder"
  # where another clone was quicker, its files are the same
  mv -T "$work" "$folder" 2>/dev/null || rm -rf "$work"
}

# --- Pulsar's server, through Maven, outside the repository ----------------------------------------------------------
install_pulsar() {
  local home="$CACHE/apache-pulsar-$PULSAR_VERSION"
  [ -x "$home/bin/pulsar" ] && return
  say "fetching Pulsar $PULSAR_VERSION through Maven (245 MB, once)"
  mkdir -p "$CACHE/download"
  fetch_artifact "org.apache.pulsar:pulsar-server-distribution:$PULSAR_VERSION:tar.gz:bin" "$PULSAR_SHA512" "$CACHE/download"
  local unpacked; unpacked=$(mktemp -d "$CACHE/unpack.XXXXXX")
  tar -xzf "$CACHE/download/pulsar-server-distribution-$PULSAR_VERSION-bin.tar.gz" -C "$unpacked"
  # A move on one file system is atomic: an interrupted start leaves no half-unpacked server behind.
  mv "$unpacked/apache-pulsar-$PULSAR_VERSION" "$home"
  rm -rf "$unpacked" "$CACHE/download"
}

# --- the published rules of invoices (EN 16931, Peppol, XRechnung) and their schemas, with which the tests check them ---
EN16931_JARS=(
  com.helger.phive.rules:phive-rules-en16931:3.2.15
  com.helger.phive.rules:phive-rules-peppol:3.2.15
  com.helger.phive.rules:phive-rules-xrechnung:3.2.15
  com.helger.ubl:ph-ubl21:9.0.2
  com.helger.xsd:ph-xsds-ccts-cct-schemamodule:3.0.0
  com.helger.cii:ph-cii-d16b:4.0.0
)
EN16931_SHA512=(
  267b01e378e8691d32f10b93860a15fe2f87f8ce24e534206fb90131246aa4e361d8975d99baf88ad4e660bf2042621f7a4c59104cff0b7a0123a8560aeb809a
  55b21f2786b8c4f3e6972cbd9e42f39063fbc4c750586b2e3894aaa46cd21c8aebad42ef23fb6e6dcb8966403da0b90015c2015a77a2530062389f3199bcddba
  893d6163bcd47387f850937b143e024c713571cf463bbee121475f435d5e80e6071187f9daba89af84db885608e6e8aaa71a3589c861d1f94aec47d008f5194a
  6bb6323a305bce12ab48a84f081300079d1f721abb9dec52e088a16a8b580ac08577115f44d1462723976d2a65a361b475c5a29dd4d8bf58e159a9c6bc3ce4b9
  3e77b32539defeb38b7e8d9e8c783fb566f00844fb72ef11ba060c87eddaf6c1241bbf89edb084b1f51020d98059bfaa1b3f845f87833e1d7312ee1f35e9014d
  3d7e1ce61291cd95d792bb657452ad6ef47f1ceda8c06ae9751c7ec1f12aa6cff96b9bd6cefee8db1fce0b828bb604bae09085f3c04dccd1bf0605d42a1c6f47
)

install_invoice_rules() { fetch_set en16931 EN16931 "the rules of invoices through Maven (9 MB, once)"; }

# --- veraPDF, with which a nightly test checks that invoices are PDF/A-3; it needs a JDK --------------------------------
VERAPDF_JARS=(
  org.verapdf:core:1.28.2
  org.verapdf:feature-reporting:1.28.2
  com.fasterxml.jackson.core:jackson-annotations:2.15.0
  com.fasterxml.jackson.core:jackson-core:2.15.0
  com.fasterxml.jackson.core:jackson-databind:2.15.0
  javax.activation:javax.activation-api:1.2.0
  javax.xml.bind:jaxb-api:2.4.0-b180830.0359
  com.sun.xml.bind:jaxb-core:2.3.0.1
  com.sun.xml.bind:jaxb-impl:2.3.2
  org.verapdf:metadata-fixer:1.28.2
  org.verapdf:parser:1.28.2
  org.verapdf:pdf-model:1.28.2
  org.mozilla:rhino:1.7.13
  net.java.dev.stax-utils:stax-utils:20070216
  org.verapdf:validation-model:1.28.2
  org.verapdf:verapdf-xmp-core:1.28.2
)
VERAPDF_SHA512=(
  2dec3aa55f6c95fa9fc0103d65d7b1248d20b6c623f50dbab35619260b668732e355854b65e725cf5f9fa79c14d06c974f8437c9997c8600c8713e4c945f719d
  9859da76f6e73b6578f7110d65ca3671d1feb211ffb0dc6561e7f8cc5472ffdd95efb5c669a3c7f2f0a417af9cc8726df36e297e30ca6edc7fc5887cb385f7bf
  a35abe45ffd708ec5f312e293026f564b405ea82ba7e999783c65e9172095761ba52229949572bb8ee10a264050f486d0ef334a9eab2c77be359fcb1788f393f
  8cff3de29dfd4a4869b4fcf018771f11313845ed67dfd08518dd668f2a818bbff6532a1737dd10a5a20b1f27fd4705a0b9ee32adad06c7087ca0ab2b81f2164b
  2e71b6bda082a09f1c85c783896d13dc68dc818f1cb02e773a1569890b0daef8ea6ab4d863f465681fe07525eb9773d37ff2bd7eff6ba4f05b736d50c471e124
  8ee0db43ae402f0079a836ef2bff5d15160e3ff9d585c3283f4cf474be4edd2fcc8714d8f032efd72cae77ec5f6d304fc24fa094d9cdba5cf72966cc964af6c9
  1d9e270e7ae1ab6bf3ad8c85b044096a58716180daeb9ffa181230b1d8862812954d4d2d3162b24cb2f1c947e998a186581259094e05ad875416488ca7dc3932
  fda51767b175ab5b12c7438b9a11873fe570fa4b5ffa2c3d10eebca9d1dcada6a8ff2d287ac76017c6a546e1f5cb02988fb7e2fac32a4a95ad443e1a1b4ade35
  bd45fb0d3fe3723375d712727002c63e5df518b7bde54a0bc6941757f73ce575b93b89872db615a97e80da96eb760f650cbcc4477204a5e028c7b3530e9322c6
  5da6cfcadf1116c8e88c296c00e409c44bf2467eaba8c9201ac7cd8df1f0df9ef624d9e73b9e1d088973bf0fff102c37537db2cf69de6e28b9bde9cd06165993
  f5923276413a5cca9b4f7d5754f3733a0797f75121a41fd00f790340b1fdc826072a0eaae1ad352d771f490a4105401c55ee12810788a792b87de0b26cd14705
  71a8295d3f7d2f6ae26e879fae31fc482dc4d2cfe8965f51ee0d16b2f9346c78a28c790c637b1e78e76a89a1dc31e7f6582d8eb1433bbc2bb3e470791219de33
  d153b23442775e45582dfd45eebce31264a9c8862b8630f6d4da311a9320adf64167e74812e70171e921918b0ab5a9d4b33e1187bd27258562d6c98cb5848d77
  03b834f275c4d3819ee2926f4e54bf6c0355a4045711592b5a3b5e74cd92bed3c7d607c92091711c4d233fd7c771477158819e475c71d2f1c9265f3d11933ea0
  dbede574858eda9647df868fce4ab1f253b9eac0d387b7327b91dc8755474db359cb86e02c4313e176688bd13b16fe5f5f124c94086b4f8c8b818c262abafc1d
  5d124f87b7c2bbb2b02f1c5a50920ee7be19958b7718403b529dddda45311e16f4dcdc8214b5610fd9a71669a8f74497c8652f0bc5df689c6c5ddee9f2ede536
)

install_verapdf() { fetch_set verapdf VERAPDF "veraPDF through Maven (9 MB, once)"; }

# --- Delta for Spark, with which the tests run the queries of docs/data-out.md; the jobs do not need it ------------------
DELTA_JARS=(
  io.delta:delta-spark_4.2_2.13:4.4.0
  io.delta:delta-storage:4.4.0
  io.delta:delta-kernel-api:4.4.0
  io.delta:delta-kernel-defaults:4.4.0
)
DELTA_SHA512=(
  e5ed81343c92148c786396698e8543956e41fee78eedfe4c305d231d7de900ce32ef39d6b63d090bca3baa4650eb9d0e88f5ef697a780da655344e493f438e27
  88dc766fb423a2b81546373133246d7f8216e20456b7f6e8ba5ce6c861d6c7fa9e8bac3081402775241e7ef62a0ae05f2070d0816f1b07d838f2ef3d98cfa744
  18baac435dfeb499d0eec71978687ee57d63a44ba7355a3e97433c51ef7f2b3deebea19a0ab6f6014801b3bef451f9e8c007b85d5d8216e0df8d3c9fb342df71
  be2e5394a5b538ff5ff4c28bf2b548a0385f4c2cae72d8b6df54a6e5d49bacdaba062d838c46b790afdd3253cb0dbb16a1ceb26b46d4c117446819cbd4c9c012
)

install_delta() { fetch_set delta-spark DELTA "Delta for Spark through Maven (13 MB, once)"; }

# --- the S3 server of the local stack, built by Go -------------------------------------------------------------------
# Go holds each module against its checksum database, where GOSUMDB is not off. The S3 server needs 1.25. From 1.21 on Go fetches what a module needs, if it is let.
go_minor() { command -v go >/dev/null 2>&1 && go env GOVERSION | sed -nE 's/^go1\.([0-9]+).*/\1/p'; }

install_versitygw() {
  local folder="$CACHE/versitygw-$VERSITYGW_VERSION" minor
  [ -x "$folder/versitygw" ] && return
  minor=$(go_minor || true)
  if [ "${minor:-0}" -lt 21 ]; then
    # All but a lake on S3 works without it, so this is no reason to fail.
    say "no S3 server: it needs Go 1.25 or newer (without it there is no LAKE=s3; later: make setup)"
    return
  fi
  say "building the S3 server versitygw $VERSITYGW_VERSION with Go (a minute, once)"
  local work; work=$(mktemp -d "$CACHE/versitygw.XXXXXX")
  GOTOOLCHAIN=$([ "$minor" -lt 25 ] && echo auto || go env GOTOOLCHAIN) CGO_ENABLED=0 GOBIN="$work" \
    go install -trimpath -ldflags '-s -w' "github.com/versity/versitygw/cmd/versitygw@v$VERSITYGW_VERSION"
  chmod 755 "$work"
  # where another clone was quicker, its program is the same
  mv -T "$work" "$folder" 2>/dev/null || rm -rf "$work"
}

# --- helm, with which `make check` renders the charts, built by Go -------------------------------------------------------
# Beside what else runs: `nice`. It must be told for which Kubernetes its checks are, else it believes in 1.20.
install_helm() {
  local folder="$CACHE/kubernetes/bin" minor work flags="-s -w" package
  [ -x "$folder/helm" ] && return
  minor=$(go_minor || true)
  [ "${minor:-0}" -ge 21 ] || fail "the charts of deploy/helm cannot be checked: Go 1.25 or newer is needed to build helm"
  say "building helm $HELM_VERSION with Go (two to four minutes, once)"
  mkdir -p "$folder"
  work=$(mktemp -d "$folder/helm.XXXXXX")
  for package in pkg/chartutil pkg/lint/rules; do
    flags+=" -X helm.sh/helm/v3/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/$package.k8sVersionMinor=33"
  done
  GOTOOLCHAIN=$([ "$minor" -lt 25 ] && echo auto || go env GOTOOLCHAIN) CGO_ENABLED=0 GOBIN="$work" \
    nice -n 10 go install -trimpath -ldflags "$flags" "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION"
  mv "$work/helm" "$folder/helm"
  rmdir "$work"
}

# --- promtool, which the tests hold alert rules and dashboards against -------------------------------------------------
# apt holds the package against the signed index of Debian. Unpacked, not installed: Debian's package would start a Prometheus of its own, and installing it needs root.
install_promtool() {
  local folder="$CACHE/promtool" work
  command -v promtool >/dev/null 2>&1 || [ -x "$folder/promtool" ] && return
  if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    # All but the tests of the rules works without it, so this is no reason to fail.
    say "no promtool: put the one of any Prometheus from 2.42 on into PATH (the tests of alert rules need it)"
    return
  fi
  say "fetching promtool from Debian's package prometheus (19 MB, once)"
  work=$(mktemp -d "$CACHE/promtool.XXXXXX")
  if ! (cd "$work" && apt-get download -qq prometheus >/dev/null 2>&1 && dpkg-deb -x prometheus_*.deb package); then
    say "no promtool: the package could not be fetched (sudo apt-get update, then make setup)"
    rm -rf "$work"
    return
  fi
  mkdir "$work/made"
  mv "$work/package/usr/bin/promtool" "$work/package/usr/bin/prometheus" "$work/made"
  # where another clone was quicker, its programs are the same
  mv -T "$work/made" "$folder" 2>/dev/null || true
  rm -rf "$work"
}

# One after the other: Maven's local repository is for one Maven at a time.
install_from_maven() { install_pulsar; install_invoice_rules; install_delta; }

# beside STEP...: steps that share nothing, each of which waits for the network or keeps one core busy
beside() {
  local step pids=() failed=0
  trap 'kill 0' INT  # a command behind an `&` ignores Ctrl-C
  for step in "$@"; do "$step" & pids+=($!); done
  for step in "${pids[@]}"; do wait "$step" || failed=1; done
  return $failed
}

case "${1:-all}" in
  python) install_python ;;
  console) build_console ;;
  pulsar) install_pulsar ;;
  invoice-rules) mkdir -p "$CACHE"; install_invoice_rules ;;
  verapdf) mkdir -p "$CACHE"; install_verapdf ;;
  delta) mkdir -p "$CACHE"; install_delta ;;
  package-tools) need_package_tools; install_missing ;;
  image-tools) need_image_tools; install_missing ;;
  helm) install_helm ;;
  kubernetes-tools) need_kubernetes_tools; install_missing; install_helm ;;
  all) mkdir -p "$CACHE"; need_system_packages; install_missing; beside install_python build_console install_from_maven install_versitygw install_promtool ;;
  *) fail "unknown step '$1' (python, console, pulsar, invoice-rules, verapdf, delta, helm, package-tools, image-tools, kubernetes-tools, or nothing for all)" ;;
esac
