"""`waybill kubernetes doctor`: what is wrong with an installation in a namespace of a Kubernetes cluster.

It asks by kubectl and changes nothing. `findings` is pure: it judges the objects that were seen.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from waybill.identity.tokens import InvalidToken, read_claims

Level = Literal["error", "warning", "unknown"]
Object = Mapping[str, Any]

CHECKS = ("access", "rights", "versions", "clock", "nodes", "storage", "secrets", "tls", "names", "pods", "releases")
OLDEST_KUBERNETES = 30
"""The minor version of Kubernetes 1 that the charts need."""
_KUBELET_BEHIND = 3
_CLOCK_S = 5.0
"""More than this and tokens, certificates and leases are judged differently by two machines."""
_SOON = timedelta(days=14)
_TOKEN_SOON = timedelta(days=1)
_ISSUED = re.compile(r"[0-9a-f]{8,}\.pem")
_NEEDED = {
    "apps": ("statefulsets", "deployments"),
    "batch": ("jobs", "cronjobs"),
    "": ("services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"),
    "policy": ("poddisruptionbudgets",),
    "networking.k8s.io": ("networkpolicies",),
    "rbac.authorization.k8s.io": ("roles", "rolebindings"),
}
_WORKLOADS = ("StatefulSet", "Deployment", "DaemonSet", "Job", "CronJob")
_MOST_LOGS = 20
_ASK_S = 60
_LINE = 500


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or that could not be asked. `check`: one of `CHECKS`."""

    check: str
    level: Level
    subject: str
    problem: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the cluster answered. `kinds`: objects of the namespace by kind; `cluster`: nodes, leases, classes.

    `last_lines`: the last line of the log of `POD/CONTAINER`. `refused`: what was not answered, by what was asked.
    """

    namespace: str
    now: datetime
    """This machine's clock when the server said `server_time`."""
    server_time: datetime | None = None
    versions: Object = field(default_factory=dict)
    rules: Sequence[Object] | None = None
    kinds: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    last_lines: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> Sequence[Object]:
        return self.kinds.get(kind, ())

    @property
    def time(self) -> datetime:
        return self.server_time or self.now


def findings(seen: Seen) -> list[Finding]:
    """All that is wrong, in the order of `CHECKS`."""
    checks: Mapping[str, Callable[[Seen], Iterator[Finding]]] = {
        "access": _access,
        "rights": _rights,
        "versions": _versions,
        "clock": _clock,
        "nodes": _nodes,
        "storage": _storage,
        "secrets": _secrets,
        "tls": _tls,
        "names": _names,
        "pods": _pods,
        "releases": _releases,
    }
    return [finding for name in CHECKS for finding in checks[name](seen)]


def _access(seen: Seen) -> Iterator[Finding]:
    for asked, reason in seen.refused.items():
        yield Finding("access", "unknown", asked, reason, "ask with an account that may read it")
    if not seen.refused and not any(seen.of(kind) for kind in _WORKLOADS):
        problem = "the namespace has no workloads"
        yield Finding("access", "error", seen.namespace, problem, "name the installation's namespace by --namespace")


def _rights(seen: Seen) -> Iterator[Finding]:
    """Whether this account may install and upgrade."""
    if seen.rules is None:
        return
    missing = [
        resource
        for group, resources in _NEEDED.items()
        for resource in resources
        if not any(_allows(rule, group, resource) for rule in seen.rules)
    ]
    if missing:
        problem = f"this account may not create {', '.join(missing)}"
        yield Finding("rights", "warning", seen.namespace, problem, "helm upgrade needs it: bind the role `admin`")


def _allows(rule: Object, group: str, resource: str) -> bool:
    named = (("apiGroups", group), ("resources", resource), ("verbs", "create"))
    return not rule.get("resourceNames") and all({value, "*"} & set(rule.get(key, ())) for key, value in named)


def _versions(seen: Seen) -> Iterator[Finding]:
    """Client, API server, kubelets, and the images of one release."""
    server = _minor(seen.versions.get("serverVersion", {}).get("gitVersion", ""))
    client = _minor(seen.versions.get("clientVersion", {}).get("gitVersion", ""))
    if server is not None:
        if server < OLDEST_KUBERNETES:
            problem = f"the API server is 1.{server}, the charts need 1.{OLDEST_KUBERNETES}"
            yield Finding("versions", "error", "API server", problem, "upgrade Kubernetes")
        if client is not None and abs(client - server) > 1:
            problem = f"kubectl is 1.{client}, the API server 1.{server}"
            yield Finding("versions", "warning", "kubectl", problem, "use a kubectl within one minor version")
        for node in seen.of("Node"):
            kubelet = _minor(node["status"]["nodeInfo"]["kubeletVersion"])
            if kubelet is not None and not server - _KUBELET_BEHIND <= kubelet <= server:
                problem = f"its kubelet is 1.{kubelet}, the API server 1.{server}"
                remedy = f"a kubelet may be {_KUBELET_BEHIND} minor versions older, and never newer"
                yield Finding("versions", "error", _name(node), problem, remedy)
    used = {
        (container["image"], _labels(pod).get("app.kubernetes.io/version", ""))
        for pod in seen.of("Pod")
        for container in pod["spec"]["containers"]
        if "/waybill-" in container["image"]
    }
    for image, chart in sorted(used):
        if chart and image.rpartition(":")[2] != chart:
            problem = f"its chart was made for {chart}"
            remedy = "install the chart of the image's version, unless you built the image yourself"
            yield Finding("versions", "warning", f"image {image}", problem, remedy)


def _minor(version: str) -> int | None:
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def _clock(seen: Seen) -> Iterator[Finding]:
    """This machine's clock and the nodes' against the API server's; a lease has the time of its node."""
    if seen.server_time is None:
        return
    remedy = "synchronise the clock (NTP): tokens and certificates are judged by it"
    ahead_s = (seen.now - seen.server_time).total_seconds()
    # the server says whole seconds
    if abs(ahead_s) > _CLOCK_S + 1:
        problem = f"its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the API server's"
        yield Finding("clock", "warning", "this machine", problem, remedy)
    ready = {_name(node) for node in seen.of("Node") if _condition(node, "Ready").get("status") == "True"}
    for lease in seen.of("Lease"):
        if _name(lease) not in ready or "renewTime" not in lease["spec"]:
            continue
        age_s = (seen.server_time - _time(lease["spec"]["renewTime"])).total_seconds()
        lasts_s = lease["spec"].get("leaseDurationSeconds", 40)
        if age_s < -_CLOCK_S - 1:
            yield Finding("clock", "error", _name(lease), f"its clock is at least {-age_s:.0f} s ahead", remedy)
        elif age_s > lasts_s + _CLOCK_S:
            problem = f"it is ready, and its heartbeat says {age_s:.0f} s ago: its clock is behind"
            yield Finding("clock", "error", _name(lease), problem, remedy)


def _nodes(seen: Seen) -> Iterator[Finding]:
    for node in seen.of("Node"):
        ready = _condition(node, "Ready")
        if ready.get("status") != "True":
            problem = f"not ready: {ready.get('message') or ready.get('reason') or 'no heartbeat'}"
            remedy = "start its kubelet; for one that is lost, add the taint out-of-service (docs/kubernetes.md)"
            yield Finding("nodes", "error", _name(node), problem, remedy)
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure"):
            if _condition(node, kind).get("status") == "True":
                problem = f"{kind}: {_condition(node, kind).get('message', '')}"
                yield Finding("nodes", "error", _name(node), problem, "pods are evicted from it: give it more room")


def _storage(seen: Seen) -> Iterator[Finding]:
    default = "storageclass.kubernetes.io/is-default-class"
    classes = {_name(one): one for one in seen.of("StorageClass")}
    has_default = any(one["metadata"].get("annotations", {}).get(default) == "true" for one in classes.values())
    zones = {_labels(node).get("topology.kubernetes.io/zone") for node in seen.of("Node")} - {None}
    known, early = "StorageClass" in seen.kinds, set[str]()
    for claim in seen.of("PersistentVolumeClaim"):
        wanted, name = claim["spec"].get("storageClassName"), f"claim {_name(claim)}"
        phase = claim.get("status", {}).get("phase")
        if known and not wanted and not has_default and not claim["spec"].get("volumeName"):
            remedy = "set storage.className in the chart's values, or mark a StorageClass as default"
            yield Finding("storage", "error", name, "it names no storage class, and none is default", remedy)
        elif known and wanted and wanted not in classes and phase != "Bound":
            remedy = f"known are {', '.join(sorted(classes)) or 'none'}"
            yield Finding("storage", "error", name, f"there is no storage class {wanted}", remedy)
        elif phase == "Lost":
            yield Finding("storage", "error", name, "its volume is gone", "restore it, or delete the claim")
        elif phase == "Pending":
            why = _event(seen, _name(claim)) or "no event says why"
            yield Finding("storage", "warning", name, f"not bound: {why}", "look at the provisioner's log")
        if wanted in classes and classes[wanted].get("volumeBindingMode") == "Immediate":
            early.add(wanted)
    for name in sorted(early) if len(zones) > 1 else ():
        problem = "it chooses a zone before the pod has one (volumeBindingMode: Immediate)"
        yield Finding("storage", "warning", f"class {name}", problem, "use a class with WaitForFirstConsumer")


def _secrets(seen: Seen) -> Iterator[Finding]:
    """Secrets, and keys of them, that pods or their settings name and that do not exist."""
    if "Secret" not in seen.kinds:
        return
    have = {_name(secret): set(secret.get("data", {})) for secret in seen.of("Secret")}
    settings = {_name(one): "\n".join(one.get("data", {}).values()) for one in seen.of("ConfigMap")}
    said = set()
    for owner, spec in _templates(seen):
        for name, keys, needed in _references(spec):
            if name not in have and needed:
                said.add((owner, f"Secret {name} does not exist"))
            elif needed and (missing := keys - have[name]):
                said.add((owner, f"Secret {name} has no {', '.join(sorted(missing))}"))
        texts = [settings.get(volume["configMap"]["name"], "") for volume in spec["volumes"] if "configMap" in volume]
        paths = set(re.findall(r'"(/[^"\n]+)"', "\n".join(texts)))
        for where, files in _mounted(spec, have).items():
            lost = {path for path in paths if path.startswith(where + "/") and path not in files}
            said |= {(owner, f"its settings name {path}, which no Secret brings") for path in sorted(lost)}
    for owner, problem in sorted(said):
        yield Finding("secrets", "error", owner, problem, "create it: docs/kubernetes.md has the command")


def _references(spec: Object) -> Iterator[tuple[str, set[str], bool]]:
    """Each Secret that a pod's specification names, the keys of it, and whether a pod cannot start without."""
    for volume in spec["volumes"]:
        for source in [volume, *volume.get("projected", {}).get("sources", ())]:
            if secret := source.get("secret"):
                name = secret.get("secretName") or secret.get("name")
                yield name, {item["key"] for item in secret.get("items", ())}, not secret.get("optional")
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        for variable in container.get("env", ()):
            if secret := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield secret["name"], {secret["key"]}, not secret.get("optional")
        for source in container.get("envFrom", ()):
            if secret := source.get("secretRef"):
                yield secret["name"], set(), not secret.get("optional")


def _mounted(spec: Object, have: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The paths of files from Secrets, by the folder where their volume is mounted."""
    found: dict[str, set[str]] = {}
    for volume in spec["volumes"]:
        sources = [
            one["secret"] for one in [volume, *volume.get("projected", {}).get("sources", ())] if "secret" in one
        ]
        places = {
            mount["mountPath"].rstrip("/")
            for container in [*spec["containers"], *spec.get("initContainers", ())]
            for mount in container.get("volumeMounts", ())
            if sources and mount["name"] == volume["name"] and "subPath" not in mount
        }
        for source in sources:
            keys = have.get(source.get("secretName") or source.get("name"), set())
            items = {item["key"]: item["path"] for item in source.get("items", ())} or {key: key for key in keys}
            for place in places:
                found.setdefault(place, set()).update(f"{place}/{path}" for key, path in items.items() if key in keys)
        for place in places:
            # a folder that is named itself
            found[place] |= {path.rpartition("/")[0] for path in found[place]}
    return found


def _tls(seen: Seen) -> Iterator[Finding]:
    """Certificates and tokens that have ended or end soon, and keys of other certificates."""
    for secret in seen.of("Secret"):
        files = _files(secret)
        for key, content in files.items():
            where = f"Secret {_name(secret)}, {key}"
            ends = _end_of_token(content) if key.endswith("token") else None
            soon, what = _TOKEN_SOON, "token"
            if certificate := None if _ISSUED.fullmatch(key) else _certificate(content):
                ends, soon, what = certificate.not_valid_after_utc, _SOON, "certificate"
                if certificate.not_valid_before_utc > seen.time:
                    yield Finding("tls", "error", where, "the certificate is not valid yet", "compare the clocks")
                own = {"certificate.pem": "key.pem", "tls.crt": "tls.key", "authority.pem": "authority.key"}.get(key)
                if own in files and not _fits(certificate, files[own]):
                    remedy = "replace both together"
                    yield Finding("tls", "error", where, f"{own} is the key of another certificate", remedy)
            if ends is not None and ends - seen.time < soon:
                over = ends < seen.time
                problem = f"the {what} {'ended' if over else 'ends'} at {ends:%Y-%m-%d %H:%M} UTC"
                remedy = "issue it again and replace it in the Secret; pods read it without a restart"
                yield Finding("tls", "error" if over else "warning", where, problem, remedy)


def _names(seen: Seen) -> Iterator[Finding]:
    """Hosts in settings that are Services of this namespace: they exist, and their certificates have these names."""
    services = {_name(one): one for one in seen.of("Service")}
    secrets = {_name(one): _files(one) for one in seen.of("Secret")}
    pattern = re.compile(rf"\b([a-z0-9-]+)\.{re.escape(seen.namespace)}\.svc(?:\.[a-z0-9.-]*[a-z0-9])?\b")
    hosts = {
        (found[0], found[1])
        for one in seen.of("ConfigMap")
        for text in one.get("data", {}).values()
        for found in pattern.finditer(text)
    }
    for host, name in sorted(hosts):
        if name not in services:
            remedy = "correct the values of the chart, or install what brings it"
            yield Finding("names", "error", host, "settings name it, and no Service has this name", remedy)
            continue
        selector = services[name]["spec"].get("selector") or {"": ""}
        for owner, spec in _templates(seen):
            if not selector.items() <= spec["labels"].items():
                continue
            served = [
                (secret, names)
                for secret, _, _ in _references(spec)
                if (names := _server_names(secrets.get(secret, {})))
            ]
            if served and not any(host in names for _, names in served):
                secret, names = served[0]
                problem = f"the certificate in Secret {secret} is for {', '.join(sorted(names))}"
                yield Finding("names", "error", host, problem, f"issue it with --at {host} (server of {owner})")


def _pods(seen: Seen) -> Iterator[Finding]:
    for pod in seen.of("Pod"):
        phase = pod.get("status", {}).get("phase")
        # a job starts another one
        if phase != "Succeeded" and not (phase == "Failed" and _is_of_job(pod)):
            yield from _pod(seen, pod)
    for kind in ("StatefulSet", "Deployment"):
        for one in seen.of(kind):
            wanted, made = one["spec"].get("replicas", 1), one.get("status", {}).get("replicas", 0)
            # of a Deployment, events are about its ReplicaSet
            refused = _condition(one, "ReplicaFailure").get("message") or _event(seen, _name(one), "FailedCreate")
            if made < wanted and refused:
                yield Finding("pods", "error", _name(one), refused, "pods are refused: look at the namespace's policy")


def _pod(seen: Seen, pod: Object) -> Iterator[Finding]:
    status, name = pod.get("status", {}), _name(pod)
    if status.get("phase") == "Failed":
        yield Finding("pods", "error", name, status.get("message") or status.get("reason") or "failed", "delete it")
        return
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield Finding("pods", "error", name, scheduled.get("message", "not scheduled"), "give it a node that fits")
        return
    states = _states(pod)
    for state in states:
        if _is_ready(state):
            continue
        line = seen.last_lines.get(f"{name}/{state['name']}", "")
        problem = ": ".join(part for part in (_why(state), line) if part)
        remedy = f"kubectl logs {name} -c {state['name']}"
        yield Finding("pods", "error", f"{name}/{state['name']}", problem, remedy)
    if not states:
        yield Finding("pods", "warning", name, _event(seen, name) or "no container was started yet", "wait")


def _states(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _is_ready(state: Object) -> bool:
    """Also what ended as it should, such as an init container."""
    return bool(state.get("ready")) or state.get("state", {}).get("terminated", {}).get("exitCode") == 0


def _why(state: Object) -> str:
    now = state.get("state", {})
    if waiting := now.get("waiting"):
        before = state.get("lastState", {}).get("terminated", {})
        code = f", ended with {before['exitCode']}" if "exitCode" in before else ""
        message = "" if before else f" ({waiting['message']})" if waiting.get("message") else ""
        return f"{waiting.get('reason', 'waits')}{code}{message}"
    if ended := now.get("terminated"):
        return f"ended with {ended.get('exitCode')} ({ended.get('reason', '')})"
    return "runs and is not ready"


def _is_of_job(pod: Object) -> bool:
    return any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", ()))


def _releases(seen: Seen) -> Iterator[Finding]:
    """Helm's last attempt for each release."""
    last: dict[str, Object] = {}
    for secret in seen.of("Secret"):
        if secret.get("type") == "helm.sh/release.v1":
            labels = _labels(secret)
            kept = last.get(labels["name"])
            if kept is None or int(labels["version"]) > int(kept["version"]):
                last[labels["name"]] = labels
    for name, labels in sorted(last.items()):
        if labels["status"] == "failed" or labels["status"].startswith("pending"):
            problem = f"its revision {labels['version']} is {labels['status']}"
            remedy = f"helm upgrade {name} again, or helm rollback {name} to a revision that worked"
            yield Finding("releases", "error", f"release {name}", problem, remedy)


# Parts of objects.


def _name(one: Object) -> str:
    return str(one["metadata"]["name"])


def _labels(one: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = one["metadata"].get("labels") or {}
    return labels


def _condition(one: Object, kind: str) -> Object:
    conditions = one.get("status", {}).get("conditions") or ()
    return next((found for found in conditions if found["type"] == kind), {})


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _event(seen: Seen, name: str, reason: str = "") -> str:
    """The message of the last event about an object."""
    about = [one for one in seen.of("Event") if one["involvedObject"].get("name") == name]
    about = [one for one in about if not reason or one.get("reason") == reason]
    about.sort(key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
    return str(about[-1].get("message", "")) if about else ""


def _templates(seen: Seen) -> Iterator[tuple[str, dict[str, Any]]]:
    """The specification of each workload's pods, with their labels."""
    for kind in _WORKLOADS:
        for one in seen.of(kind):
            outer = one["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else one["spec"]
            template = outer["template"]
            spec = template["spec"]
            labels = template.get("metadata", {}).get("labels") or {}
            yield f"{kind.lower()}/{_name(one)}", {**spec, "labels": labels, "volumes": spec.get("volumes") or []}


def _files(secret: Object) -> dict[str, bytes]:
    if secret.get("type") == "helm.sh/release.v1":
        return {}
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def _certificate(content: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(content) if b"BEGIN CERTIFICATE" in content else None
    except ValueError:
        return None


def _end_of_token(content: bytes) -> datetime | None:
    try:
        return datetime.fromtimestamp(read_claims(content.decode().strip()).expires_s, UTC)
    except (InvalidToken, ValueError, OverflowError, OSError):
        return None


def _fits(certificate: x509.Certificate, key: bytes) -> bool:
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        own = serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError):
        return False
    return own.public_bytes(*form) == certificate.public_key().public_bytes(*form)


def _server_names(files: Mapping[str, bytes]) -> set[str]:
    """The DNS names of a Secret's own certificate."""
    certificate = _certificate(files.get("certificate.pem") or files.get("tls.crt") or b"")
    if certificate is None:
        return set()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return set(names.get_values_for_type(x509.DNSName))


# Asking the cluster.


class NoCluster(Exception):
    """kubectl is missing, or no API server answers it."""


@dataclass
class Asking:
    """kubectl with its common options. `refused`: what it did not answer, by what was asked."""

    kubectl: Sequence[str]
    refused: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, given: str | None = None) -> tuple[str, str, int]:
        """Output, messages and exit status. Raises NoCluster."""
        command = [*self.kubectl, *words]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_ASK_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoCluster(f"{self.kubectl[0]}: {error}") from error
        return done.stdout, done.stderr, done.returncode

    def objects(self, what: str, *words: str) -> Any:
        """The answer as JSON; {} for none."""
        out, said, code = self.run(*words, "-o", "json")
        if code:
            self.refused[what] = _last_line(said)
        try:
            return json.loads(out) if out.strip() else {}
        except ValueError:
            return {}

    def namespace(self) -> str:
        """That of the kubeconfig's context."""
        config = self.objects("kubeconfig", "config", "view", "--minify")
        context = (config.get("contexts") or [{}])[0].get("context") or {}
        return context.get("namespace") or "default"

    def kinds(self, namespace: str) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        for what, (words, kinds) in _ASKED.items():
            place = ("-n", "kube-node-lease") if "Lease" in kinds else () if what in _OF_CLUSTER else ("-n", namespace)
            items = self.objects(what, *place, "get", words).get("items")
            if items is not None and what not in self.refused:
                found |= {kind: [] for kind in kinds}
            for one in items or ():
                found.setdefault(one["kind"], []).append(one)
        return found

    def rules(self, namespace: str) -> Sequence[Object] | None:
        """What this account may do; None: not known."""
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        given = json.dumps({**review, "spec": {"namespace": namespace}})
        answer, _, code = self.run("create", "-o", "json", "-f", "-", given=given)
        found: Sequence[Object] | None = None if code else json.loads(answer)["status"]["resourceRules"]
        return found

    def last_lines(self, namespace: str, pods: Sequence[Object]) -> dict[str, str]:
        """Of each container that is not ready; where it has said nothing, of the one before."""
        found = {}
        unready = [(_name(pod), state["name"]) for pod in pods for state in _states(pod) if not _is_ready(state)]
        for pod, container in unready[:_MOST_LOGS]:
            for words in ((), ("--previous",)):
                line, _, _ = self.run("-n", namespace, "logs", pod, "-c", container, "--tail=1", *words)
                if line.strip():
                    found[f"{pod}/{container}"] = line.strip()[:_LINE]
                    break
        return found


_ASKED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "pods and settings": ("pods,services,configmaps,persistentvolumeclaims,events", ("Pod", "Service", "ConfigMap")),
    "workloads": ("statefulsets,deployments,daemonsets,jobs,cronjobs", _WORKLOADS),
    "Secrets": ("secrets", ("Secret",)),
    "nodes": ("nodes", ("Node",)),
    "storage classes": ("storageclasses", ("StorageClass",)),
    "node heartbeats": ("leases", ("Lease",)),
}
_OF_CLUSTER = ("nodes", "storage classes")


def observe(kubectl: Sequence[str], namespace: str | None) -> Seen:
    """Ask the cluster by kubectl. Raises NoCluster."""
    asking = Asking(kubectl)
    # the headers of the answer, with the server's clock, are in kubectl's own log
    _, said, code = asking.run("get", "--raw", "/version", "-v=8")
    now = datetime.now(UTC)
    if code:
        raise NoCluster(f"the API server does not answer: {_last_line(said)}")
    date = re.search(r"\bDate: (.+ GMT)", said)
    namespace = namespace or asking.namespace()
    kinds = asking.kinds(namespace)
    return Seen(
        namespace=namespace,
        now=now,
        server_time=parsedate_to_datetime(date[1]) if date else None,
        versions=asking.objects("versions", "version"),
        rules=asking.rules(namespace),
        kinds=kinds,
        last_lines=asking.last_lines(namespace, kinds.get("Pod", ())),
        refused=asking.refused,
    )


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["no answer"])[-1]
