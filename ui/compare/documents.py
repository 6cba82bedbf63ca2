"""Text of a PDF or DOCX file, which anybody may have made, and what of it could not be read."""

import io
import logging
import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from ckv_core.base.read_apart import Data, read_apart
from ckv_core.errors import ConfigError
from ckv_core.records.external_selection import MAX_TEXT_CHARS

MAX_PAGES = 2_000
MAX_XML_BYTES = 64 * 2**20  # unpacked; a character of text takes a few dozen bytes of it
PAGES_S = 40.0  # what was read until then is taken
LIMIT_S = 60  # then the process that reads is ended
LOCKED = "The PDF is locked with a password; save it without one and open it again."
ONLY_SCANS = (
    "The PDF holds no text, as its pages are scans; run text recognition (OCR) on it first."
)
EMPTY = "The document holds no text."
NO_KIND = "Open a .pdf or .docx file, or a text file."
NOT_WHOLE = "This is no whole {} file; save it again and open that."
# NUL and the like come out of broken fonts; a lone surrogate is no valid Unicode.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def read_document(name: str, data: bytes) -> dict[str, Any]:
    """Extract a document's text in a process of its own, bounded in time and memory.

    Returns:
        `text`, and `note`: one sentence about what could not be read, or empty.

    Raises:
        ConfigError: the file is no such document, holds no text or takes too much.
    """
    read = {"pdf": _read_pdf, "docx": _read_docx}.get(name.rpartition(".")[2].lower())
    if read is None:
        raise ConfigError(NO_KIND)
    with read_apart(read, data, LIMIT_S) as parts:
        text, note = parts
    return {"text": text, "note": note}


def _read_pdf(data: Data) -> Iterator[str]:
    """The text and the note of a PDF."""
    from pypdf import PdfReader  # noqa: PLC0415 - in the process that reads alone
    from pypdf.errors import PyPdfError  # noqa: PLC0415

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it warns of quotes the file
    assert isinstance(data, bytes)  # noqa: S101 - as `read_document` gives it
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted:
            raise ConfigError(LOCKED)
        count = len(reader.pages)
    except (PyPdfError, ValueError, KeyError, RecursionError):
        raise ConfigError(NOT_WHOLE.format("PDF")) from None
    texts, blank, until = [], [], time.monotonic() + PAGES_S
    for number in range(1, min(count, MAX_PAGES) + 1):
        texts.append(_page_text(reader, number))
        if not texts[-1].strip():
            blank.append(number)
        if time.monotonic() > until or sum(map(len, texts)) > MAX_TEXT_CHARS:
            break
    notes = []
    if blank:
        pages = "Page" if len(blank) == 1 else "Pages"
        hold = "holds no text (a scan)" if len(blank) == 1 else "hold no text (scans)"
        notes.append(f"{pages} {_ranges(blank)} {hold}.")
    if len(texts) < count:
        notes.append(f"Only the first {len(texts):,} of {count:,} pages were read.")
    yield from _taken("\n\n".join(filter(None, texts)), notes, ONLY_SCANS)


def _page_text(reader: Any, number: int) -> str:
    """The text of one page, empty where it cannot be read."""
    try:
        return str(reader.pages[number - 1].extract_text()).strip()
    except MemoryError:
        raise
    except Exception:  # a broken page raises what it likes, and the others may be whole
        return ""


def _read_docx(data: Data) -> Iterator[str]:
    """The text and the note of a DOCX."""
    import mammoth  # noqa: PLC0415 - in the process that reads alone

    assert isinstance(data, bytes)  # noqa: S101 - as `read_document` gives it
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            names = parts.infolist()
    except zipfile.BadZipFile:
        raise ConfigError(NOT_WHOLE.format("DOCX")) from None
    if sum(part.file_size for part in names if part.filename.endswith(".xml")) > MAX_XML_BYTES:
        raise ConfigError("The document's text is too large; open a shorter one.")
    pictures = sum(part.filename.startswith("word/media/") for part in names)
    notes = []
    if pictures:
        notes.append("1 picture is" if pictures == 1 else f"{pictures} pictures are")
        notes[0] += " left out."
    text = mammoth.extract_raw_text(io.BytesIO(data)).value
    yield from _taken(re.sub(r"\n{3,}", "\n\n", text), notes, EMPTY)


def _taken(text: str, notes: list[str], nothing: str) -> Iterator[str]:
    """The text within its limit, and the note about it; ConfigError with `nothing` for none."""
    text = _NO_TEXT.sub("", text).strip()
    if not text:
        raise ConfigError(nothing)
    if len(text) > MAX_TEXT_CHARS:
        notes.append(f"Only the first {MAX_TEXT_CHARS:,} characters are taken.")
    yield text[:MAX_TEXT_CHARS]
    yield " ".join(notes)


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in words: `3, 7-9 and 12`; of many ranges the first ten."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(words) > 10:
        words = [*words[:10], f"{len(words) - 10} further ranges"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
