"""Bytes that are counted while rows are stored, beside all rows counted one by one."""

from dataclasses import replace

from sqlalchemy import JSON, LargeBinary, String, select, type_coerce

from ckv_core.records.run_request import RunRequest
from storage import library
from storage.database import Database
from storage.models import AnyText, Array, ResultRow, Run, SampleRow
from storage.recorder import Recorder
from storage.usage import ROW_BYTES, usage_by_owner, usage_of
from tests.storage.conftest import make, record
from tests.storage.test_studies import MODEL, SAMPLES, STUDY, results_of


def rows_of(database: Database, *tables: type) -> int:
    """All rows' texts, JSON and blobs in bytes, and what each row is said to take besides."""
    total = 0
    for table in tables:
        columns = [
            type_coerce(column, LargeBinary if isinstance(column.type, LargeBinary) else String)
            for column in table.__table__.columns
            if isinstance(column.type, AnyText | JSON | LargeBinary)
        ]
        with database.read() as session:
            for row in session.execute(select(*columns)):
                values = (value for value in row if value is not None)
                sizes = (len(v.encode() if isinstance(v, str) else v) for v in values)
                total += ROW_BYTES + sum(sizes)
    return total


def test_what_is_counted_on_the_way_is_what_is_there(here):
    if here.server is not None:  # the driver hands JSON out parsed
        return
    slug = make(here, answer="a\x00", question="Ünï?")
    record(here, RunRequest(context="c" * 999, variants=("full", "snapkv")))
    here.write_with(library.annotate, slug, "Tïtle", "note \x00", ["tag"])
    studies = Recorder(here)
    study = studies.save(STUDY, SAMPLES[:2], "ann")
    studies.served_by(study, MODEL, {"torch": "1"})
    studies.save(replace(STUDY, tolerance=7.0), SAMPLES, "ann")
    for text in ("ä", "longer"):  # a failed one is written over
        studies.commit(study, results_of(SAMPLES[0], state="failed", text=text))
    studies.commit(study, results_of(SAMPLES[1]))
    here.write_with(library.annotate, study, "Another nämé", "note", [])
    total = here.read_with(usage_of, None).run_bytes
    assert total == rows_of(here, Run, SampleRow, ResultRow, Array)
    of_ann = here.read_with(usage_of, "ann").run_bytes
    nobody = next(each for each in here.read_with(usage_by_owner) if each.owner is None)
    assert (nobody.runs, nobody.run_bytes) == (2, total - of_ann)
