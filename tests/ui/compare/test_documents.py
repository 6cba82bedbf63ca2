"""Text of PDF and DOCX files, and what cannot be read of them, each in one sentence."""

import pytest

from ckv_core.errors import ConfigError
from tests.factories.documents import docx, pdf
from tests.ui.served_app import Served
from ui.compare import documents
from ui.compare.documents import read_document
from ui.server.route_answers import IMPORT_TYPE


def test_text_comes_out_of_both_and_what_holds_none_is_named():
    read = read_document("Report.PDF", pdf(["One", "", "Three", "", "", ""]))
    assert read == {"text": "One\n\nThree", "note": "Pages 2 and 4-6 hold no text (scans)."}
    read = read_document("a.docx", docx(["Fish &amp; chips", "Two"], pictures=2))
    assert read == {"text": "Fish & chips\n\nTwo", "note": "2 pictures are left out."}


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.pdf", pdf(["", ""]), "its pages are scans"),
        ("a.pdf", pdf(["One"], password="x"), "locked with a password"),
        ("a.pdf", b"%PDF-1.7 and nothing", "no whole PDF file"),
        ("a.docx", b"PK and nothing", "no whole DOCX file"),
        ("a.docx", docx([]), "holds no text"),
        ("a.docx", docx(["x"], blanks=documents.MAX_XML_BYTES), "text is too large"),
        ("a.exe", b"MZ", "Open a .pdf or .docx file"),
    ],
)
def test_what_gives_no_text_is_one_sentence(name, data, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_document(name, data)


def test_pages_that_take_too_long_are_left_out(monkeypatch):
    monkeypatch.setattr(documents, "PAGES_S", 0.0)
    text, note = documents._read_pdf(pdf(["One", "Two"]))
    assert (text, note) == ("One", "Only the first 1 of 2 pages were read.")


def test_users_get_the_text_and_strangers_nothing(app: Served):
    path, file = "/documents/text?name=a.pdf", pdf(["One"])
    with app.client("ann") as ann, app.client() as nobody:
        headers = {"Content-Type": IMPORT_TYPE}
        assert ann.post(path, content=file, headers=headers).json()["text"] == "One"
        refused = ann.post(path, content=b"no", headers=headers)
        assert (refused.status_code, "whole" in refused.json()["message"]) == (400, True)
        assert ann.post(path, content=file).status_code == 415
        assert nobody.post(path, content=file, headers=headers).status_code == 401
