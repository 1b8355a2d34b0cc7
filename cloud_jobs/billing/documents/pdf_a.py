"""What makes a PDF of ReportLab a PDF/A-3 (ISO 19005-3, level B), and with an invoice's XML a Factur-X or ZUGFeRD file.

Factur-X 1.0 and ZUGFeRD 2 are one format: the CII of EN 16931 is attached under a fixed name, and the metadata say so.
"""

from __future__ import annotations

import io
from functools import cache
from typing import Any, Final
from xml.sax.saxutils import escape

from PIL import ImageCms
from reportlab.pdfbase.pdfdoc import (
    PDFArray,
    PDFDictionary,
    PDFName,
    PDFObjectReference,
    PDFStream,
    PDFString,
    PDFZCompress,
)

ATTACHED: Final = "factur-x.xml"
"""The name that readers look for."""
_FX: Final = "urn:factur-x:pdfa:CrossIndustryDocument:invoice:1p0#"
_DATE: Final = "2000-01-01T00:00:00+00:00"
"""ReportLab's time of an invariant file: the same document gives the same bytes."""
_DATE_BYTES: Final = slice(24, 36)
"""Of the creation of a colour profile (ICC.1:2010, 7.2.8)."""
_FIELDS: Final = (
    ("DocumentFileName", "The name of the embedded XML document"),
    ("DocumentType", "The type of the hybrid document"),
    ("Version", "The version of the standard of the embedded XML document"),
    ("ConformanceLevel", "The conformance level of the embedded XML document"),
)


def make_archivable(document: Any, *, title: str, author: str, language: str, invoice: bytes | None) -> None:
    """Adds colour profile, metadata and attachment to a PDFDocument of ReportLab before it is saved.

    `language`: of the text, such as `de`. `invoice`: the CII to attach; None: none.
    """
    catalog = document.Catalog
    catalog.Lang = PDFString(language)
    profile = _stream(document, _srgb(), N=3)
    intent = PDFDictionary({
        "Type": PDFName("OutputIntent"),
        "S": PDFName("GTS_PDFA1"),
        "OutputConditionIdentifier": PDFString("sRGB IEC61966-2.1"),
        "Info": PDFString("sRGB IEC61966-2.1"),
        "DestOutputProfile": profile,
    })  # fmt: skip
    added = {"OutputIntents": PDFArray([intent])}
    metadata = _xmp(title, author, document.info.producer, with_invoice=invoice is not None)
    # a reader may look for metadata in the bytes
    catalog.Metadata = _stream(document, metadata, compressed=False, Type=PDFName("Metadata"), Subtype=PDFName("XML"))
    if invoice is not None:
        dates = PDFDictionary({"ModDate": PDFString("D:20000101000000+00'00'"), "Size": len(invoice)})
        file = _stream(document, invoice, Type=PDFName("EmbeddedFile"), Subtype="/text#2Fxml", Params=dates)
        specification = PDFDictionary({
            "Type": PDFName("Filespec"),
            "F": PDFString(ATTACHED),
            "UF": PDFString(ATTACHED),
            "Desc": PDFString("The invoice as CII (EN 16931)"),
            "AFRelationship": PDFName("Alternative"),
            "EF": PDFDictionary({"F": file, "UF": file}),
        })  # fmt: skip
        reference = document.Reference(specification)
        names = PDFDictionary({"Names": PDFArray([PDFString(ATTACHED), reference])})
        catalog.Names = PDFDictionary({"EmbeddedFiles": names})
        added["AF"] = PDFArray([reference])
    # ReportLab writes the entries that the catalogue names, and knows none of these
    for name, value in added.items():
        setattr(catalog, name, value)
    catalog.__NoDefault__ = [*catalog.__NoDefault__, *added]


def _stream(document: Any, content: bytes, *, compressed: bool = True, **entries: Any) -> PDFObjectReference:
    stream = PDFStream(PDFDictionary(entries), content, filters=[PDFZCompress] if compressed else None)
    return document.Reference(stream)


_format: Final = PDFStream.format


def _format_with_line_end(stream: Any, document: Any) -> bytes:
    written: bytes = _format(stream, document)
    return written.removesuffix(b"endstream\n") + b"\nendstream\n"


# PDF/A asks for an end of line there (6.1.7.1), and ReportLab makes some streams while it writes the file
PDFStream.format = _format_with_line_end


@cache
def _srgb() -> bytes:
    """An ICC profile of sRGB, without the time of its creation."""
    written = io.BytesIO(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    profile = bytearray(written.getvalue())
    profile[_DATE_BYTES] = bytes.fromhex("07d000010001000000000000")
    return bytes(profile)


def _xmp(title: str, author: str, producer: str, *, with_invoice: bool) -> bytes:
    facts = f"""
  <rdf:Description rdf:about="" xmlns:pdfaid="http://www.aiim.org/pdfa/ns/id/">
   <pdfaid:part>3</pdfaid:part>
   <pdfaid:conformance>B</pdfaid:conformance>
  </rdf:Description>
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
   <dc:title><rdf:Alt><rdf:li xml:lang="x-default">{escape(title)}</rdf:li></rdf:Alt></dc:title>
   <dc:creator><rdf:Seq><rdf:li>{escape(author)}</rdf:li></rdf:Seq></dc:creator>
  </rdf:Description>
  <rdf:Description rdf:about="" xmlns:pdf="http://ns.adobe.com/pdf/1.3/" xmlns:xmp="http://ns.adobe.com/xap/1.0/">
   <pdf:Producer>{escape(producer)}</pdf:Producer>
   <xmp:CreateDate>{_DATE}</xmp:CreateDate>
   <xmp:ModifyDate>{_DATE}</xmp:ModifyDate>
  </rdf:Description>"""
    if with_invoice:
        facts += _factur_x()
    text = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">{facts}
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""
    return text.encode()


def _factur_x() -> str:
    """What Factur-X states, and the description of these fields that PDF/A needs."""
    properties = "".join(
        f"""
        <rdf:li rdf:parseType="Resource">
         <pdfaProperty:name>{name}</pdfaProperty:name>
         <pdfaProperty:valueType>Text</pdfaProperty:valueType>
         <pdfaProperty:category>external</pdfaProperty:category>
         <pdfaProperty:description>{description}</pdfaProperty:description>
        </rdf:li>"""
        for name, description in _FIELDS
    )
    return f"""
  <rdf:Description rdf:about="" xmlns:fx="{_FX}">
   <fx:DocumentType>INVOICE</fx:DocumentType>
   <fx:DocumentFileName>{ATTACHED}</fx:DocumentFileName>
   <fx:Version>1.0</fx:Version>
   <fx:ConformanceLevel>EN 16931</fx:ConformanceLevel>
  </rdf:Description>
  <rdf:Description rdf:about="" xmlns:pdfaExtension="http://www.aiim.org/pdfa/ns/extension/"
    xmlns:pdfaSchema="http://www.aiim.org/pdfa/ns/schema#" xmlns:pdfaProperty="http://www.aiim.org/pdfa/ns/property#">
   <pdfaExtension:schemas>
    <rdf:Bag>
     <rdf:li rdf:parseType="Resource">
      <pdfaSchema:schema>Factur-X PDFA Extension Schema</pdfaSchema:schema>
      <pdfaSchema:namespaceURI>{_FX}</pdfaSchema:namespaceURI>
      <pdfaSchema:prefix>fx</pdfaSchema:prefix>
      <pdfaSchema:property>
       <rdf:Seq>{properties}
       </rdf:Seq>
      </pdfaSchema:property>
     </rdf:li>
    </rdf:Bag>
   </pdfaExtension:schemas>
  </rdf:Description>"""
