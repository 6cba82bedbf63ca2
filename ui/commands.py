"""The commands of `python app.py`: storage's own, and exports that need charts and components.

Gradio and Plotly are imported where they are used: a backup must not wait for them.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ckv_core.errors import CkvError, ConfigError
from storage import commands, repository
from storage.database import open_database
from storage.models import END_STATES
from storage.records import RunNotes, StoredRun
from storage.sqlite_file import write_whole
from ui.accounts.commands import add_commands


def main(arguments: Sequence[str]) -> int:
    """Run one command; see `storage.commands.main`."""
    return commands.main(arguments, _extend_export, add_commands)


def _extend_export(export: argparse.ArgumentParser) -> None:
    add = export.add_argument
    add("--html", type=Path, metavar="FILE", help="one run as an HTML report that opens offline")
    add("--without", default="", metavar="PARTS", help="left out of the report: kept,charts,strips")
    texts = "one run's texts as LLM Comparator JSON, a file for each pair of variants"
    add("--comparator", type=Path, metavar="FILE", help=texts)
    pair = "indices of the two variants to compare; else the full cache with each of the others"
    add("--pair", nargs=2, type=int, metavar=("A", "B"), help=pair)
    add("--kvpress", type=Path, metavar="FILE", help="one run's variants as Python for kvpress")
    export.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> str:
    told = []
    if options.html or options.comparator or options.kvpress:
        run, notes = _load(options)
        if options.html:
            told.append(_write_report(options, run, notes))
        if options.comparator:
            told += _write_comparisons(options, run, notes)
        if options.kvpress:
            told.append(_write_kvpress(options.kvpress, run))
    if options.out or not told:
        told.append(commands.export_bundle(options))
    return "\n".join(told)


def _load(options: argparse.Namespace) -> tuple[StoredRun, RunNotes]:
    if options.all or len(options.slugs) != 1:
        raise ConfigError("--html, --comparator and --kvpress take one run; name its slug.")
    (slug,) = options.slugs
    with closing(open_database(commands.database_url())) as database, database.read() as session:
        run, notes = repository.load_run(session, slug), repository.load_notes(session, slug)
    if run.state not in END_STATES:
        raise CkvError(f"Run {slug} is not over yet; wait for its end.")
    return run, notes


def _write_report(options: argparse.Namespace, run: StoredRun, notes: RunNotes) -> str:
    from ui.report.contents import read_groups
    from ui.report.report import build_report
    from ui.services.live_runs import stored_snapshot

    data = build_report(stored_snapshot(run), notes, read_groups(options.without))
    write_whole(options.html, data)
    return f"{options.html}: report of {run.slug}, {len(data):,} bytes."


def _write_kvpress(path: Path, run: StoredRun) -> str:
    from ui.report.kvpress_code import NOTHING, kvpress_code

    if run.result.prompt is None:
        raise CkvError(NOTHING)
    write_whole(path, kvpress_code(run.result, run.request.max_new_tokens).encode())
    return f"{path}: {len(run.result.variants)} variants of {run.slug} for kvpress."


def _write_comparisons(options: argparse.Namespace, run: StoredRun, notes: RunNotes) -> list[str]:
    from ui.results.llm_comparator import NO_PAIR, comparable_pairs, comparator_json
    from ui.services.live_runs import stored_snapshot

    pairs = [tuple(options.pair)] if options.pair else comparable_pairs(run.result)
    if not pairs:
        raise CkvError(NO_PAIR)
    told = []
    for first, second in pairs:
        value = comparator_json(stored_snapshot(run), notes, first, second)
        path: Path = options.comparator
        if len(pairs) > 1:
            path = path.with_stem(f"{path.stem}-{first}-{second}")
        write_whole(path, json.dumps(value).encode())
        names = " and ".join(model["name"] for model in value["models"])
        told.append(f"{path}: {names}, {len(value['examples'])} examples.")
    return told
