"""The components of a package: their licences as one text, and an SBOM (CycloneDX 1.6)."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.packages.errors import PackagingError
from deploy.packages.wheels import sha256, wheel_texts

_PART_FIELDS = ("type", "name", "version", "purl", "licenses", "hashes")
_LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")


@dataclass(frozen=True, kw_only=True)
class Component:
    """One Python distribution in a package, read from its wheels: one for each version of Python, or one for all."""

    name: str
    version: str
    licence: str
    wheels: Mapping[str, str]
    """The SHA-256 of each wheel, by file name."""
    needs: frozenset[str]
    """Names of the distributions that it requires, extras aside."""
    licence_texts: Mapping[str, str]
    """The texts of its licence, by file name."""
    parts: tuple[Mapping[str, Any], ...]
    """What is compiled into its libraries, as its own SBOM lists it."""

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def components_of(wheels: Sequence[Path], *, texts_needed: bool = True) -> list[Component]:
    """The components in these wheels, by name. Raises PackagingError where one has no licence, if `texts_needed`."""
    found = defaultdict[str, list[Path]](list)
    for wheel in sorted(wheels):
        found[canonicalize_name(wheel.name.split("-")[0])].append(wheel)
    return [_component(name, found[name], texts_needed) for name in sorted(found)]


def _component(name: str, wheels: list[Path], texts_needed: bool) -> Component:
    texts = dict(wheel_texts(wheels[0]))
    headers = HeaderParser().parsestr(texts["METADATA"])
    licence_texts = {
        path: text
        for path, text in texts.items()
        if path.startswith("licenses/") or path.upper().startswith(_LICENCE_FILES)
    }
    if texts_needed and not licence_texts:
        raise PackagingError(wheels[0].name, "the wheel has no text of its licence")
    required = [Requirement(line) for line in headers.get_all("Requires-Dist", [])]
    return Component(
        name=name,
        version=headers["Version"],
        licence=_licence(headers),
        wheels={wheel.name: sha256(wheel) for wheel in wheels},
        needs=frozenset(
            canonicalize_name(one.name) for one in required if not one.marker or one.marker.evaluate({"extra": ""})
        ),
        licence_texts=licence_texts,
        parts=tuple(_compiled_parts(texts)),
    )


def _licence(headers: Message) -> str:
    """The licence by its expression, else by its classifier, else by the old field."""
    if expression := headers["License-Expression"]:
        return str(expression)
    classifiers = [str(line) for line in headers.get_all("Classifier", []) if line.startswith("License ::")]
    if classifiers:
        return " OR ".join(line.rpartition(" :: ")[2] for line in classifiers)
    return str(headers["License"] or "see its text")


def _compiled_parts(texts: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    for path, text in texts.items():
        if path.startswith("sboms/"):
            for part in json.loads(text).get("components", []):
                yield {key: part[key] for key in _PART_FIELDS if key in part}


def licences_text(title: str, components: Sequence[Component]) -> str:
    """The licences of all components, with their texts."""
    listed = [f"{one.name} {one.version}: {one.licence}" for one in components]
    compiled = {
        f"{part['name']} {part.get('version', '')} (in {one.name}): {licences}"
        for one in components
        for part in one.parts
        if (licences := " ".join(_names_of_licences(part)))
    }
    blocks = [
        f"{'-' * 78}\n{one.name} {one.version}: {path}\n{'-' * 78}\n{text.strip()}\n"
        for one in components
        for path, text in one.licence_texts.items()
    ]
    return "\n".join([title, "", *listed, "", "Compiled into libraries:", "", *sorted(compiled), "", *blocks])


def _names_of_licences(part: Mapping[str, Any]) -> Iterator[str]:
    for entry in part.get("licenses", []):
        licence = entry.get("license", {})
        yield entry.get("expression") or licence.get("id") or licence.get("name") or "unknown"


def bill_of_materials(
    name: str,
    version: str,
    components: Sequence[Component],
    *,
    purl: str,
    time_s: int,
    debian: Mapping[str, str] | None = None,
) -> str:
    """The SBOM of a package in CycloneDX 1.6 JSON. The same components give the same text.

    `debian`: the version of each Debian package that is in it, by name.
    """
    names = {one.name: one.purl for one in components}
    system = {package: f"pkg:deb/debian/{package}@{found}" for package, found in (debian or {}).items()}
    listed = [_listed(one) for one in components]
    listed += [
        {"type": "library", "bom-ref": system[package], "name": package, "version": found, "purl": system[package]}
        for package, found in (debian or {}).items()
    ]
    content = json.dumps([purl, listed], sort_keys=True)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "metadata": {
            "timestamp": datetime.fromtimestamp(time_s, UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": listed,
        "dependencies": [
            {"ref": purl, "dependsOn": sorted([*names.values(), *system.values()])},
            *(
                {"ref": one.purl, "dependsOn": sorted(names[inner] for inner in one.needs & names.keys())}
                for one in components
            ),
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _listed(component: Component) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
        "licenses": [_licence_entry(component.licence)],
        "externalReferences": [
            {"type": "distribution", "url": file, "hashes": [{"alg": "SHA-256", "content": digest}]}
            for file, digest in sorted(component.wheels.items())
        ],
    }
    if component.parts:
        found["components"] = list(component.parts)
    return found


def _licence_entry(licence: str) -> dict[str, Any]:
    try:
        return {"expression": str(canonicalize_license_expression(licence))}
    except InvalidLicenseExpression:
        return {"license": {"name": licence}}
