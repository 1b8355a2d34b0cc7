"""What each object of our charts must be, whatever the chart and the values: `faults` says where it is not."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

Object = Mapping[str, Any]

_POD_SPECS = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_NAKED = ("Pod", "ReplicaSet", "ReplicationController")
_SERVED = ("Deployment", "StatefulSet")
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SECRET = re.compile(
    r"BEGIN [A-Z ]*PRIVATE KEY|whsec_|\beyJ[\w-]{10,}\.|"
    # a value that is no path, table or flag: settings name the file that has the secret
    r"""^\s*[\w.-]*(?:password|secret|token|private_key|access_key)[\w.-]*\s*[:=]\s*(?!true|false|[{\[])["']?[^\s"'/$]+""",
    re.IGNORECASE | re.MULTILINE,
)
_NOT_SECRET = re.compile(
    r"^\s*(?:[\w.-]*_(?:file|s|seconds)\s*=|automountServiceAccountToken:|secret: \{secretName:)", re.IGNORECASE
)
UNREACHABLE_S = 10


def faults(objects: Sequence[Object], release: str) -> list[str]:
    """One line for each fault in the objects of one release, by kind and name."""
    found = []
    for one in objects:
        checks = [_names(one, release), _secrets(one), _rights(one), _budget(one)]
        checks += [check for pod in _templates(one) for check in (_admission(pod["spec"]), _tolerations(pod["spec"]))]
        if (template := pod_template(one)) is not None:
            spec = template["spec"]
            checks += [_admission(spec), _ends(one, spec), _tolerations(spec)]
            checks += [_neighbours(one, template, objects), _settings(template, objects), _account(spec, objects)]
        found += [f"{one['kind']} {one['metadata']['name']}: {fault}" for check in checks for fault in check]
    return found


def pod_template(one: Object) -> Any:
    if one["kind"] not in _POD_SPECS:
        return None
    for key in _POD_SPECS[one["kind"]]:
        one = one[key]
    return one


def _templates(one: Object) -> Iterator[Object]:
    """Pods that a program makes from a file of settings, such as executors of Spark."""
    for name, text in one.get("data", {}).items() if one["kind"] == "ConfigMap" else []:
        if name.endswith(".yaml") and (made := yaml.safe_load(text))["kind"] == "Pod":
            yield made


def _names(one: Object, release: str) -> Iterator[str]:
    name = one["metadata"]["name"]
    if one["kind"] in _NAKED:
        yield "nobody starts it elsewhere when its node is dead"
    if not _NAME.fullmatch(name) or not (name == release or name.startswith(f"{release}-")):
        yield "its name is not lower-case, at most 63 characters, and the release's first"
    if one["metadata"].get("labels", {}).get("app.kubernetes.io/instance") != release:
        yield "no label says its release"


def _secrets(one: Object) -> Iterator[str]:
    if one["kind"] == "Secret":
        yield "what it holds would stand in values and in the release's history"
    if one["kind"] == "ConfigMap":
        for name, text in one.get("data", {}).items():
            for match in _SECRET.finditer(text):
                if not _NOT_SECRET.match(match[0]):
                    yield f"{name} has a secret: {match[0].strip()[:20]}"


def _rights(one: Object) -> Iterator[str]:
    if one["kind"].startswith("ClusterRole"):
        yield "reaches beyond its namespace"
    for rule in one.get("rules", []) if one["kind"] == "Role" else []:
        if "*" in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]:
            yield "allows everything of something"


def _budget(one: Object) -> Iterator[str]:
    if one["kind"] == "PodDisruptionBudget" and one["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "a pod that is not ready keeps a node from being drained"


def _containers(spec: Object) -> Iterable[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def _admission(spec: Object) -> Iterator[str]:
    """The profile `restricted` of Pod Security, and a root file system that is read only."""
    of_pod = spec.get("securityContext", {})
    if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        yield "shares a namespace with its node"
    if not of_pod.get("runAsNonRoot") or of_pod.get("runAsUser") == 0:
        yield "may run as root"
    if of_pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "no seccompProfile"
    for volume in spec.get("volumes", []):
        if not set(volume) - {"name"} <= _VOLUMES:
            yield f"volume {volume['name']} is not allowed"
    for container in _containers(spec):
        for fault in _container_rights(container):
            yield f"container {container['name']} {fault}"


def _container_rights(container: Object) -> Iterator[str]:
    context = container.get("securityContext", {})
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    if any(context.get(key) is not value for key, value in wanted.items()) or context.get("privileged"):
        yield "has too many rights"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
        yield "may run as root"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "has a port of its node"


def _ends(one: Object, spec: Object) -> Iterator[str]:
    """Requests, limits, probes, and a time to end in."""
    if one["kind"] in _SERVED and "terminationGracePeriodSeconds" not in spec:
        yield "no time to end is set"
    for container in _containers(spec):
        resources = container.get("resources", {})
        if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get("limits", {}):
            yield f"container {container['name']} has no requests, or no limit of memory"
    for container in spec["containers"] if one["kind"] in _SERVED else []:
        probes = [container.get(name) for name in ("readinessProbe", "livenessProbe")]
        if None in probes:
            yield f"container {container['name']} is not probed for being ready and alive"
        elif probes[0].keys() == probes[1].keys() and all(probes[0][key] == probes[1][key] for key in probes[0]):
            yield f"container {container['name']} is started again whenever it is not ready"


def _tolerations(spec: Object) -> Iterator[str]:
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        wanted = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_S}
        if wanted not in spec.get("tolerations", []):
            yield f"stays for five minutes with {key}"


def _neighbours(one: Object, template: Object, objects: Sequence[Object]) -> Iterator[str]:
    """Several pods are on several nodes and have a budget that lets a node be drained; all have a NetworkPolicy."""
    labels = template.get("metadata", {}).get("labels", {})
    if not any(_selects(policy["spec"].get("podSelector"), labels) for policy in _of("NetworkPolicy", objects)):
        yield "no NetworkPolicy is for it"
    if one["kind"] == "StatefulSet" and one["spec"].get("podManagementPolicy") != "Parallel":
        yield "its pods start one after the other"
    scaled = [
        scaler["spec"].get("minReplicas", 1)
        for scaler in _of("HorizontalPodAutoscaler", objects)
        if (scaler["spec"]["scaleTargetRef"]["kind"], scaler["spec"]["scaleTargetRef"]["name"])
        == (one["kind"], one["metadata"]["name"])
    ]
    if scaled and "replicas" in one["spec"]:
        yield "an upgrade undoes what the autoscaler set"
    pods = scaled[0] if scaled else one["spec"].get("replicas", 1)
    budgets = [
        budget["spec"] for budget in _of("PodDisruptionBudget", objects) if _selects(budget["spec"]["selector"], labels)
    ]
    if one["kind"] in _SERVED and pods > 1:
        if not template["spec"].get("topologySpreadConstraints"):
            yield "nothing spreads its pods"
        if len(budgets) != 1:
            yield f"has {len(budgets)} PodDisruptionBudgets"
    if any(budget.get("minAvailable", 0) >= pods or budget.get("maxUnavailable", 1) == 0 for budget in budgets):
        yield "no node with it can be drained"


def _settings(template: Object, objects: Sequence[Object]) -> Iterator[str]:
    made = {one["metadata"]["name"] for one in _of("ConfigMap", objects)}
    used = {name for name in made if json.dumps({"name": name}) in json.dumps(template["spec"])}
    if used and not any(key.startswith("checksum/") for key in template.get("metadata", {}).get("annotations", {})):
        yield f"goes on with old settings of {', '.join(sorted(used))}"


def _account(spec: Object, objects: Sequence[Object]) -> Iterator[str]:
    """A pod asks the API only if a Role of the chart is for its account."""
    account = spec.get("serviceAccountName", "default")
    bound = [subject["name"] for one in _of("RoleBinding", objects) for subject in one["subjects"]]
    if account not in {one["metadata"]["name"] for one in _of("ServiceAccount", objects)}:
        yield "has no account of its own"
    if spec.get("automountServiceAccountToken") is not (account in bound):
        yield "has a token that it does not need, or not the one that it needs"


def _of(kind: str, objects: Sequence[Object]) -> Iterator[Object]:
    return (one for one in objects if one["kind"] == kind)


def _selects(selector: Object | None, labels: Object) -> bool:
    return selector is not None and selector.get("matchLabels", {}).items() <= labels.items()
