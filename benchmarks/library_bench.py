"""Times the queries of the library over 10,000 made-up runs; an argument is a database URL."""

import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import insert

from storage import library, search
from storage.database import Database, default_url, open_database
from storage.models import Prompt, Run, Tag, Variant
from storage.records import RunFilter

RUNS = 10_000
VARIANTS = 8
REPEATS = 20
METHODS = ("full", "snapkv", "adakv", "pyramidkv")
START = datetime(2026, 1, 1, tzinfo=UTC)
QUERIES = {
    "first page": ({}, "newest", 0),
    "page 300": ({}, "newest", 7_475),
    "by title": ({}, "title", 0),
    "by tokens": ({}, "tokens", 0),
    "word in all": ({"text": "harbour"}, "newest", 0),
    "rare word": ({"text": "w77"}, "newest", 0),
    "two words and a prefix": ({"text": "harbour w7 w8"}, "newest", 0),
    "method and budget": ({"method": "adakv", "min_budget": 100, "max_budget": 200}, "newest", 0),
    "budget alone": ({"min_budget": 100}, "newest", 0),
    "tag": ({"tag": "t3"}, "newest", 0),
    "state and model": ({"state": "done", "model": "model-2"}, "newest", 0),
    "a month": ({"since": START, "until": START + timedelta(days=30)}, "newest", 0),
}


def fill(database: Database) -> None:
    rng = random.Random(0)
    with database.write() as session:
        for index in range(RUNS):
            words = " ".join(f"w{rng.randrange(5_000)}" for _ in range(60))
            run = Run(
                slug=f"{index:012d}", title=f"Run {rng.randrange(RUNS)} harbour", state="done",
                reason="", created_at=START + timedelta(minutes=30 * index), scenario="regular",
                model_name=f"model-{index % 5}", prompt_tokens=rng.randrange(8_000),
                complete=True, request={"variants": ["snapkv"] * VARIANTS}, environment={},
                timings_ms={}, pinned=index % 1_000 == 0,
            )  # fmt: skip
            session.add(run)
            session.flush()
            session.execute(
                insert(Prompt),
                {"run_id": run.id, "question": words, "answer": "", "context": words * 20},
            )
            session.execute(insert(Tag), {"run_id": run.id, "name": f"t{index % 50}"})
            rows = [
                {
                    "run_id": run.id, "position": at, "spec": METHODS[at % 4], "label": "L",
                    "method": METHODS[at % 4], "critical": at > 3, "params": {}, "text": words,
                    "budget_tokens": 1 + rng.randrange(2_000), "final_hidden_l1": rng.random(),
                    "timings_ms": {}, "token_ids": b"", "token_texts": b"",
                }
                for at in range(VARIANTS)
            ]  # fmt: skip
            session.execute(insert(Variant), rows)
            search.index_run(session, run.id)


def measure(database: Database) -> None:
    for name, (wanted, sort, offset) in QUERIES.items():
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            with database.read() as session:
                _, total = library.list_runs(session, RunFilter(**wanted), sort, 25, offset)
            times.append((time.perf_counter() - began) * 1000)
        times.sort()
        middle, most = times[REPEATS // 2], times[-1]
        print(f"{name:24} {total:6} runs  median {middle:6.1f} ms  slowest {most:6.1f} ms")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(sys.argv[1] if len(sys.argv) > 1 else default_url(Path(folder)))
        fill(database)
        measure(database)
        database.close()


if __name__ == "__main__":
    main()
