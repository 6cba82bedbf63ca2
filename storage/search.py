"""Full-text search over runs: which words a run has, and which runs have the words of a query.

Words are cut here, not by the database, so that SQLite (FTS5) and PostgreSQL (tsvector) index the
same words and find the same runs. Both tables are called run_search and are made by a migration;
they are no mapped classes, because only the column of words is alike.
"""

import re
import unicodedata
from collections.abc import Iterable

from sqlalchemy import BigInteger, TextualSelect, bindparam, column, select, text
from sqlalchemy.orm import Session

from storage.models import OF_SAMPLES, ResultRow, Run, SampleRow

# Per run. A tsvector must stay under 1 MiB, and folding makes up to 18 characters of one.
INDEXED_CHARS = 200_000
INDEXED_BYTES = 900_000
WORD_CHARS = 60
QUERY_CHARS = 400
QUERY_WORDS = 16
_WORD = re.compile(r"[^\W_]+")

_STATEMENTS = {
    "sqlite": {
        "forget": "DELETE FROM run_search WHERE rowid = :run_id",
        "index": "INSERT INTO run_search (rowid, words) VALUES (:run_id, :words)",
        "match": "SELECT rowid AS run_id FROM run_search WHERE run_search MATCH :query",
    },
    "postgresql": {
        "forget": "DELETE FROM run_search WHERE run_id = :run_id",
        "index": "INSERT INTO run_search (run_id, words) "
        "VALUES (:run_id, array_to_tsvector(string_to_array(:words, ' ')))",
        "match": "SELECT run_id FROM run_search WHERE words @@ CAST(:query AS tsquery)",
    },
}


def words_of(source: str) -> list[str]:
    """Runs of letters and digits, case and compatibility forms folded, each cut to 60."""
    folded = unicodedata.normalize("NFKC", source).casefold()
    return [word[:WORD_CHARS] for word in _WORD.findall(folded)]


def index_run(session: Session, run_id: int) -> None:
    """Write the words of a run's title, note, question and generations as they now are.

    Of a run of many samples, title and note alone.
    """
    of_one = (Run.id == run_id, ~OF_SAMPLES)
    questions = select(SampleRow.question).join(Run, Run.id == SampleRow.run_id).where(*of_one)
    generated = select(ResultRow.text).join(Run, Run.id == ResultRow.run_id).where(*of_one)
    title, note = session.execute(select(Run.title, Run.note).where(Run.id == run_id)).one()
    texts = session.scalars(generated.order_by(ResultRow.position))
    source = "\n".join([title, note, *session.scalars(questions), *texts])[:INDEXED_CHARS]
    words = " ".join(sorted(_that_fit(words_of(source))))
    forget_run(session, run_id)
    session.execute(text(_statement(session, "index")), {"run_id": run_id, "words": words})


def forget_run(session: Session, run_id: int) -> None:
    """Remove a run's words; a later run may get its key on SQLite."""
    session.execute(text(_statement(session, "forget")), {"run_id": run_id})


def matching_runs(session: Session, query: str) -> TextualSelect | None:
    """Keys of runs that have all words of a query, the last one as a beginning.

    Any text is a query; beyond 400 characters or 16 words it is cut. None if it has no word.
    """
    words = words_of(query[:QUERY_CHARS])[:QUERY_WORDS]
    if not words:
        return None
    # Words are letters and digits only, so quotes cannot be closed from inside.
    if session.get_bind().dialect.name == "sqlite":
        expression = " ".join(f'"{word}"' for word in words) + "*"
    else:
        expression = " & ".join(f"'{word}'" for word in words) + ":*"
    statement = text(_statement(session, "match")).bindparams(bindparam("query", expression))
    return statement.columns(column("run_id", BigInteger))


def _that_fit(words: Iterable[str]) -> list[str]:
    """Each word once, the first ones as far as there is room."""
    room, fitting = INDEXED_BYTES, []
    for word in dict.fromkeys(words):
        room -= len(word.encode())
        if room < 0:
            break
        fitting.append(word)
    return fitting


def _statement(session: Session, name: str) -> str:
    return _STATEMENTS[session.get_bind().dialect.name][name]
