"""The PDF by other readers: archive metadata, the invoice inside of it, page numbers, and a customer's names."""

import io
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from PIL import Image
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from cloud_jobs.billing.documents import Document, DocumentType, Look, to_cii, to_pdf
from cloud_jobs.billing.documents.canonical import UnusableFont
from cloud_jobs.billing.documents.look import TEXTS
from cloud_jobs.billing.documents.pdf import FONT_VARIABLE, undrawn
from deploy.local.pulsar import cache_folder
from tests.cloud_jobs.billing.documents.rated import buyer, charge, issued, taxed
from tests.cloud_jobs.billing.documents.test_look import LANGUAGES, example
from tests.cloud_jobs.billing.documents.test_ubl import CHARGES

pypdf = pytest.importorskip("pypdf")


def logo(mode: str = "RGBA", form: str = "PNG") -> bytes:
    written = io.BytesIO()
    Image.new(mode, (60, 20)).save(written, form)
    return written.getvalue()


def test_the_invoice_is_inside_as_its_alternative() -> None:
    made = example()
    reader = pypdf.PdfReader(io.BytesIO(to_pdf(made)))
    assert reader.attachments == {"factur-x.xml": [to_cii(made)]}
    [specification] = reader.trailer["/Root"]["/AF"]
    assert specification["/AFRelationship"] == "/Alternative"
    assert specification["/EF"]["/F"]["/Subtype"] == "/text/xml"
    metadata = reader.trailer["/Root"]["/Metadata"].get_data().decode()
    for fact in (
        "<pdfaid:part>3</pdfaid:part>",
        "<fx:DocumentFileName>factur-x.xml</fx:DocumentFileName>",
        "<fx:ConformanceLevel>EN 16931</fx:ConformanceLevel>",
        "Rechnung WB-000042",
    ):
        assert fact in metadata


@pytest.mark.parametrize(
    "document",
    [
        issued(taxed([charge()]), number=None, issue_date=None, due_date=None),
        issued(taxed([charge(amount_minor=1234)], currency="JOD")),
    ],
    ids=["draft", "third decimal"],
)
def test_what_no_accounting_program_may_take_has_nothing_inside(document: Document) -> None:
    content = to_pdf(document)
    assert pypdf.PdfReader(io.BytesIO(content)).attachments == {}
    assert b"factur-x" not in content


def test_pages_are_numbered_and_names_are_printed() -> None:
    made = issued(taxed([charge(device=f"eu-{number:04}") for number in range(60)]))
    look = Look(language="fr", logo=logo(), colour="#006e5a", vehicles={"fleet/eu-0007": "AB-123-CD"})
    pages = [page.extract_text() for page in pypdf.PdfReader(io.BytesIO(to_pdf(made, look))).pages]
    assert len(pages) > 3
    for number, text in enumerate(pages, 1):
        assert f"page {number} sur {len(pages)}" in text
    assert "AB-123-CD (fleet/eu-0007)" in "".join(pages)
    assert made["digest"] in pages[0] + pages[1]


@pytest.fixture
def font(tmp_path: Path) -> Path:
    """A font with 東: that of the Japanese texts, in which the shape of 未 stands for it."""
    data = bytearray((TEXTS / "NotoSansJP-labels.ttf").read_bytes())
    table = data.index(b"cmap")
    begin = int.from_bytes(data[table + 8 : table + 12]) + 20
    count = int.from_bytes(data[begin + 6 : begin + 8]) // 2
    # format 4: ends, two zero bytes, beginnings, and what leads from a code to its glyph
    ends, starts, deltas = (range(begin + 14 + add, begin + len(data), 2) for add in (0, 2 + 2 * count, 2 + 4 * count))
    at = next(n for n in range(count) if data[starts[n] : starts[n] + 2] == "未".encode("utf-16-be"))
    moved = int.from_bytes(data[deltas[at] : deltas[at] + 2]) + ord("未") - ord("東")
    for place in (ends[at], starts[at]):
        data[place : place + 2] = "東".encode("utf-16-be")
    data[deltas[at] : deltas[at] + 2] = (moved % 65_536).to_bytes(2)
    file = tmp_path / "names.ttf"
    file.write_bytes(data)
    return file


def test_a_name_of_another_script_is_printed_with_the_font_of_the_environment(
    font: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(vehicles={"fleet/eu-0001": "東 1"})
    made = issued(taxed([charge(device="eu-0001")]), buyer=buyer(name="東会社"))

    def text() -> str:
        return "".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(to_pdf(made, look))).pages)

    assert undrawn("Müller 東会社") == ["東"]
    assert "[U+6771]会社" in text()
    monkeypatch.setenv(FONT_VARIABLE, str(font))
    assert undrawn("Müller 東会社") == []
    assert "東会社" in text()
    assert "東 1 (fleet/eu-0001)" in text()
    for content in (None, b"OTTO" + bytes(200), b""):
        broken = tmp_path / f"broken-{content is None}-{len(content or b'')}.ttf"
        if content is not None:
            broken.write_bytes(content)
        monkeypatch.setenv(FONT_VARIABLE, str(broken))
        with pytest.raises(UnusableFont, match="TrueType outlines"):
            to_pdf(made, look)


@pytest.fixture
def verapdf() -> Iterator[JavaGateway]:
    jars = cache_folder() / "verapdf"
    if not jars.exists():
        pytest.skip("veraPDF is not in the cache: `deploy/bootstrap.sh verapdf` gets it")
    [bridge] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port = launch_gateway(jarpath=str(bridge), classpath=f"{jars}/*", die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    gateway.jvm.org.verapdf.gf.foundry.VeraGreenfieldFoundryProvider.initialise()
    yield gateway
    gateway.shutdown()


def broken_clauses(verapdf: JavaGateway, file: Path) -> list[str]:
    """What a file breaks of PDF/A-3b."""
    flavour = verapdf.jvm.org.verapdf.pdfa.flavours.PDFAFlavour.PDFA_3_B
    foundry = verapdf.jvm.org.verapdf.pdfa.Foundries.defaultInstance()
    parser = foundry.createParser(verapdf.jvm.java.io.FileInputStream(str(file)), flavour)
    result = foundry.createValidator(flavour, False).validate(parser)
    parser.close()
    assert result.getTotalAssertions() > 1000
    found = [f"{one.getRuleId().getClause()}: {one.getMessage()}" for one in result.getTestAssertions()]
    return found or ([] if result.isCompliant() else ["not compliant"])


@pytest.mark.nightly
def test_every_pdf_is_pdf_a_3_for_verapdf(verapdf: JavaGateway, tmp_path: Path) -> None:
    looks = {name: Look(language=name, logo=logo("RGB", "JPEG")) for name in LANGUAGES}
    contents = {name: to_pdf(example(), look) for name, look in looks.items()}
    contents["note"] = to_pdf(issued(taxed(CHARGES), DocumentType.CREDIT_NOTE), Look(logo=logo()))
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert broken_clauses(verapdf, tmp_path / name) == [], name
    # it finds what is wrong
    (tmp_path / "wrong").write_bytes(contents["de"].replace(b"/AFRelationship", b"/AFRelationshop"))
    assert broken_clauses(verapdf, tmp_path / "wrong") != []
