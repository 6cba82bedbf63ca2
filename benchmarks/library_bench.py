"""Times the list of runs over 10,000 made-up ones, as a Markdown table.

An argument is the URL of an empty database; without one it is a SQLite file.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import quantiles

from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from storage import library
from storage.database import Database, default_url, open_database
from storage.models import ResultRow, Run, SampleRow
from storage.records import RunFilter, RunSort

RUNS = 10_000
VARIANTS = 8
REPEATS = 40
PAGE = 25
METHODS = ("full", "snapkv", "adakv", "pyramidkv")
START = datetime(2026, 1, 1, tzinfo=UTC)
ALL = RunFilter()
QUERIES: dict[str, tuple[RunFilter, RunSort, int]] = {
    "first page": (ALL, "newest", 0),
    "page 300": (ALL, "newest", 7_475),
    "sorted: oldest": (ALL, "oldest", 0),
    "sorted: title": (ALL, "title", 0),
    "search: a word of every run": (RunFilter(text="harbour"), "newest", 0),
    "search: a rare word": (RunFilter(text="w77"), "newest", 0),
    "search: two words and a beginning": (RunFilter(text="harbour w7 w8"), "newest", 0),
    "model": (RunFilter(model="model-2"), "newest", 0),
    "method": (RunFilter(method="adakv"), "newest", 0),
    "state": (RunFilter(state="done"), "newest", 0),
    "kind": (RunFilter(kind="compare"), "newest", 0),
    "a month": (RunFilter(since=START, until=START + timedelta(days=30)), "newest", 0),
    "one owner": (RunFilter(owner="user-1"), "newest", 0),
    "search, method, budget, by title": (
        RunFilter(text="harbour", method="adakv"),
        "title",
        0,
    ),
}


def fill(database: Database) -> None:
    """Store the runs."""
    rng = random.Random(0)
    with database.write() as session:
        for index in range(RUNS):
            words = " ".join(f"w{rng.randrange(5_000)}" for _ in range(60))
            run = Run(
                slug=f"{index:012d}", title=f"Run {rng.randrange(RUNS)} harbour", state="done",
                reason="", created_at=START + timedelta(minutes=30 * index), scenario="regular",
                model_name=f"model-{index % 5}", prompt_tokens=rng.randrange(8_000),
                complete=True, request={"variants": ["snapkv"] * VARIANTS}, environment={},
                timings_ms={}, kind="compare", owner=f"user-{index % 3}",
            )  # fmt: skip
            session.add(run)
            session.flush()
            session.execute(
                insert(SampleRow),
                {
                    "run_id": run.id,
                    "position": 0,
                    "sample": "",
                    "question": words,
                    "answers": [],
                    "details": {},
                    "context": words * 20,
                },
            )
            rows = [
                {
                    "run_id": run.id, "sample": "", "variant": f"{METHODS[at % 4]}:alpha={at}",
                    "budget": "", "position": at, "method": METHODS[at % 4], "state": "done",
                    "budget_tokens": 1 + rng.randrange(2_000), "text": words, "document": {},
                }
                for at in range(VARIANTS)
            ]  # fmt: skip
            session.execute(insert(ResultRow), rows)
            library.index_run(session, run.id)
        if database.server is not None:
            session.execute(text("ANALYZE"))  # as PostgreSQL's autovacuum does soon after


def measure(database: Database) -> None:
    """Print a row for every query, and one for the choices that stand beside the list."""
    print("| list of runs | runs found | median ms | p95 ms |\n| --- | --- | --- | --- |")
    for name, (wanted, sort, offset) in QUERIES.items():
        ask = partial(library.list_runs, wanted=wanted, sort=sort, limit=PAGE, offset=offset)
        with database.read() as session:
            _, total = ask(session)
        print_row(name, f"{total:,}", database, ask)
    print_row("choices of the filters", "", database, library.choices)


def print_row(name: str, total: str, database: Database, ask: Callable[[Session], object]) -> None:
    """Ask again and again, each time in a session of its own as the pages do."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        with database.read() as session:
            ask(session)
        times.append((time.perf_counter() - began) * 1000)
    middle, *_, highest = quantiles(times, n=20)[9:]
    print(f"| {name} | {total} | {middle:.1f} | {highest:.1f} |")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(sys.argv[1] if len(sys.argv) > 1 else default_url(Path(folder)))
        fill(database)
        measure(database)
        database.close()


if __name__ == "__main__":
    main()
