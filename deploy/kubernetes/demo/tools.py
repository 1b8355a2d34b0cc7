"""kubectl and helm of the machine's own cluster, in one namespace."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.kubernetes.cluster.layout import Layout
from deploy.kubernetes.cluster.processes import ClusterError

_COMMAND_S = 420
_DONE = frozenset({0})
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True)
class Namespace:
    """Commands in one namespace; each raises ClusterError with what the program said."""

    name: str
    layout: Layout

    def create(self) -> None:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": RESTRICTED}})

    def kubectl(self, *words: str, given: object = None) -> str:
        return self._run(self._kubectl, words, given)

    def helm(self, *words: str, values: object = None) -> str:
        program = [self.layout.program("helm"), "--kubeconfig", self._access, "-n", self.name]
        return self._run(program, [*words, *(["-f", "-"] if values is not None else [])], values)

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": objects})

    def secret(self, name: str, files: Mapping[str, Path | str]) -> dict[str, Any]:
        """A Secret with the contents of files, or with texts."""
        contents = {key: one.read_bytes() if isinstance(one, Path) else one.encode() for key, one in files.items()}
        data = {key: base64.b64encode(one).decode() for key, one in contents.items()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}

    def inside(self, pod: str, *words: str, accepts: Collection[int] = _DONE) -> str:
        """The output of a command in a pod, which has no shell."""
        return self._run(self._kubectl, ["exec", pod, "--", *words], None, accepts)

    @property
    def _access(self) -> str:
        return f"{self.layout.keys}/admin.conf"

    @property
    def _kubectl(self) -> Sequence[str]:
        return [self.layout.program("kubectl"), "--kubeconfig", self._access, "-n", self.name]

    def _run(
        self,
        program: Sequence[str],
        words: Sequence[str],
        given: object,
        accepts: Collection[int] = _DONE,
    ) -> str:
        text = None if given is None else json.dumps(given)
        done = subprocess.run(
            [*program, *words], input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
        if done.returncode not in accepts:
            raise ClusterError(f"{Path(program[0]).name} {' '.join(words)}: {done.stdout}{done.stderr}".strip())
        return done.stdout
