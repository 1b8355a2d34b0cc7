"""The published rules of EN 16931, Peppol and XRechnung (compiled Schematron), and the schemas of UBL and CII.

They are in jars of `make setup`.
"""

import os
import re
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from lxml import etree
from saxonche import PySaxonProcessor

from cloud_jobs.billing.contracts import Profile
from deploy.local.pulsar import cache_folder

RULES = "external/schematron/1.3.14.2/ubl/EN16931-UBL-validation.xslt"
CII_RULES = "external/schematron/1.3.14.2/cii/EN16931-CII-validation.xslt"
PEPPOL = "external/schematron/openpeppol/2025.5/xslt/PEPPOL-EN16931-UBL.xslt"
XRECHNUNG = "external/schematron/3.0.2/XRechnung-{}-validation.xslt"
CII_SCHEMAS = "external/schemas/d16b/"
SCHEMAS = "external/schemas/ubl21/"
TYPES = "schemas/CCTS_CCT_SchemaModule.xsd"
CORE_TYPES = '<xsd:import namespace="urn:un:unece:uncefact:data:specification:CoreComponentTypeSchemaModule:2"'
FAILED = re.compile(r'<svrl:failed-assert.*?\sid="([^"]+)"', re.DOTALL)


def jar(name: str) -> zipfile.ZipFile:
    """A jar of the cache; where it is missing, the test is skipped, but never in continuous integration."""
    found = sorted((cache_folder() / "en16931").glob(f"{name}-*.jar"))
    if not found:
        assert not os.environ.get("CI"), f"{name} is not in the cache: `make setup` gets it"
        pytest.skip(f"{name} is not in the cache: `make setup` gets it")
    return zipfile.ZipFile(found[0])


@cache
def _compiled(rules: str, of: str = "en16931") -> Callable[[bytes], list[str]]:
    processor = PySaxonProcessor(license=False)
    text = jar(f"phive-rules-{of}").read(rules).decode()
    executable = processor.new_xslt30_processor().compile_stylesheet(stylesheet_text=text)

    def broken(xml: bytes) -> list[str]:
        report = executable.transform_to_string(xdm_node=processor.parse_xml(xml_text=xml.decode()))
        assert "svrl:fired-rule" in report, "no rule was applied"
        return FAILED.findall(report)

    return broken


def broken_rules(xml: bytes) -> list[str]:
    """The ids of the rules that a document breaks, warnings included."""
    return _compiled(CII_RULES if b":CrossIndustryInvoice>" in xml else RULES)(xml)


def broken_rules_of(profile: Profile, xml: bytes) -> list[str]:
    """The ids of the rules of a profile alone that a document breaks, warnings included."""
    if profile is Profile.PEPPOL:
        return _compiled(PEPPOL, "peppol")(xml)
    return _compiled(XRECHNUNG.format("CII" if b":CrossIndustryInvoice>" in xml else "UBL"), "xrechnung")(xml)


@cache
def schema(name: str, folder: Path) -> etree.XMLSchema:
    """The schema of `Invoice` or `CreditNote`, with a place for each import, and without signatures: we have none."""
    with jar("ph-ubl21") as ubl, jar("ph-xsds-ccts-cct-schemamodule") as types:
        for member in (one for one in ubl.namelist() if one.startswith(SCHEMAS) and one.endswith(".xsd")):
            text = ubl.read(member).decode()
            text = text.replace(CORE_TYPES, f'{CORE_TYPES} schemaLocation="core-types.xsd"')
            if member.endswith("UBL-ExtensionContentDataType-2.1.xsd"):
                text = re.sub(r"<xsd:import.*?/>", "", text, flags=re.DOTALL)
            path = folder / member.removeprefix(SCHEMAS)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (folder / "common" / "core-types.xsd").write_bytes(types.read(TYPES))
    return etree.XMLSchema(etree.parse(folder / "maindoc" / f"UBL-{name}-2.1.xsd"))


@cache
def cii_schema(folder: Path) -> etree.XMLSchema:
    with jar("ph-cii-d16b") as cii:
        members = [one for one in cii.namelist() if one.startswith(CII_SCHEMAS) and one.endswith(".xsd")]
        cii.extractall(folder, members)
    return etree.XMLSchema(etree.parse(folder / CII_SCHEMAS / "data/standard/CrossIndustryInvoice_100pD16B.xsd"))
