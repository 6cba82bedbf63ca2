"""The command `cache`: keep a compressed context, ask it questions, take it elsewhere."""

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckv_core.cli import running
from ckv_core.cli.options import (
    Commands,
    Parser,
    add_command,
    add_engine_options,
    check_json_path,
    engine_settings,
    given_defaults,
    read_text,
)
from ckv_core.cli.tables import print_table
from ckv_core.errors import CkvError
from ckv_core.methods import PARAMETERS
from ckv_core.request.cache_requests import AskRequest, KeepRequest
from ckv_core.request.compare_request import MAX_NEW_TOKENS, CompareRequest
from ckv_core.results.codec import record_json
from ckv_core.results.events import Generated, RunFinished
from ckv_core.results.kept_folder import KeptEntry, KeptFolder
from ckv_core.results.kept_record import read_record
from ckv_core.runtime.memory_line import human_bytes
from ckv_core.runtime.terminal import say

Answer = dict[str, Any]


def register(commands: Commands) -> None:
    parser = commands.add_parser("cache", help="compress a context once, ask it many times")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    def action(name: str, run: Callable[[argparse.Namespace], int], told: str) -> Parser:
        made = add_command(actions, name, run, told)
        if name not in ("list", "import"):
            made.add_argument("name", metavar="NAME", help="of the kept cache")
        return made

    _add_keep(action("keep", _keep, "compress a context and keep its cache"))
    _add_ask(action("ask", _ask, "answer questions, each from the cache as it was kept"))
    listed = action("list", _list, "what is kept")
    listed.add_argument("--json", metavar="FILE|-", help="write the receipts as JSON")
    export = action("export", _export, "copy a cache to a safetensors file, receipt included")
    export.add_argument("file", metavar="FILE", help="where it goes; nothing is written over")
    brought = action("import", _import, "keep a copy of such a file")
    brought.add_argument("file", metavar="FILE", help="that `cache export` wrote")
    brought.add_argument("name", metavar="NAME", help="to keep it under")
    renamed = action("rename", _rename, "give a cache another name")
    renamed.add_argument("to", metavar="NEW", help="its name from now on")
    action("delete", _delete, "delete a cache")


def _add_keep(parser: Parser) -> None:
    add = parser.add_argument
    add("--context", required=True, metavar="FILE|-", help="UTF-8 text file, or - for stdin")
    add("--variant", required=True, metavar="SPEC", help="what compresses it, as for compare")
    add("--budget", metavar="N|N%", help=PARAMETERS["budget"].help.replace("%", "%%"))
    add("--alpha", metavar="A", help=PARAMETERS["alpha"].help)
    add("--protect", action="append", default=[], metavar="TEXT", help="as for compare")
    add_engine_options(parser)


def _add_ask(parser: Parser) -> None:
    add = parser.add_argument
    add("--question", required=True, action="append", metavar="TEXT", help="repeat for several")
    add("--max-new-tokens", type=int, default=64, metavar="T", help=f"1 to {MAX_NEW_TOKENS}")
    add("--ignore-eos", action="store_true", help="go on after the end-of-sequence token")
    add("--model", metavar="NAME|PATH", help="the same weights; default: by the receipt's name")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--json", metavar="FILE|-", help="a line of JSON for each answer; - for stdout")


def _keep(options: argparse.Namespace) -> int:
    check_json_path(options.json)
    folder = KeptFolder()
    run = CompareRequest(
        context=read_text(options.context),
        variants=(options.variant,),
        defaults=given_defaults(options),
        protect=tuple(options.protect),
        **engine_settings(options),
    )
    request = KeepRequest(run=run, path=str(folder.free(options.name)))
    request.comparison()  # refuses before the model is loaded
    loaded, _ = running.load(request)
    from ckv_core.compare.kept import keep

    for _ in running.followed(keep(request, loaded)):
        pass
    entry = folder.entry(options.name)
    running.deliver(options.json, lambda: _document(entry), lambda: _show([entry]))
    return 0


def _ask(options: argparse.Namespace) -> int:
    check_json_path(options.json)
    path = KeptFolder().find(options.name)
    model = read_record(path).model
    asked = [
        AskRequest(
            path=str(path),
            question=question,
            model=options.model or model.name,
            device=options.device,
            dtype=model.dtype,
            max_new_tokens=options.max_new_tokens,
            ignore_eos=options.ignore_eos,
        )
        for question in options.question
    ]
    for request in asked:
        request.validate()
    loaded, _ = running.load(asked[0])
    from ckv_core.compare.kept import ask

    lines = running.JsonLines(options.json)
    for request in asked:
        answer: Answer = {"cache": options.name, "question": request.question}
        for event in running.followed(ask(request, loaded)):
            if isinstance(event, Generated):
                answer["text"], answer["token_ids"] = event.texts[0], event.token_ids[0]
                answer["stopped"] = event.stopped[0]
            elif isinstance(event, RunFinished):
                answer["timings_ms"] = dict(event.timings_ms)
        lines.write(answer.copy)
        if options.json != "-":
            say(f"> {request.question}")
            say("   " + answer["text"].strip().replace("\n", "\n   "))
    lines.close()
    return 0


def _list(options: argparse.Namespace) -> int:
    entries = KeptFolder().entries()
    document = [_document(entry) for entry in entries]
    running.deliver(options.json, lambda: document, lambda: _show(entries))
    return 0


def _export(options: argparse.Namespace) -> int:
    source, target = KeptFolder().find(options.name), Path(options.file)
    read_record(source)  # a spoilt file goes nowhere
    try:
        with source.open("rb") as file, target.open("xb") as copy:
            shutil.copyfileobj(file, copy)
    except FileExistsError:
        raise CkvError(f"{options.file!r} is there already; choose another name.") from None
    except OSError as error:
        raise CkvError(f"{options.file!r} cannot be written: {error.strerror or error}.") from None
    say(f"{options.file} has the cache, its receipt and the whole context as text.")
    return 0


def _import(options: argparse.Namespace) -> int:
    source = Path(options.file)
    record = read_record(source)
    KeptFolder().add(options.name, lambda path: shutil.copyfile(source, path))
    say(f"{options.name} is kept: {record.spec} of {record.model.name}.")
    return 0


def _rename(options: argparse.Namespace) -> int:
    KeptFolder().rename(options.name, options.to)
    return 0


def _delete(options: argparse.Namespace) -> int:
    KeptFolder().delete(options.name)
    return 0


def _document(entry: KeptEntry) -> dict[str, Any]:
    told = None if entry.record is None else record_json(entry.record)
    return {"name": entry.name, "file_bytes": entry.size, "receipt": told}


def _show(entries: list[KeptEntry]) -> None:
    if not entries:
        say("No cache is kept; `cache keep` makes one.")
        return
    head = ("name", "variant", "model", "kept entries", "of", "in memory", "file", "made (UTC)")
    rows = []
    for entry in entries:
        if entry.record is None:
            rows.append((entry.name, "cannot be read", *("-" * (len(head) - 2))))
            continue
        record, receipt = entry.record, entry.record.receipt
        full = receipt.full_cache_bytes
        rows.append(
            (
                entry.name,
                record.spec,
                record.model.name,
                f"{receipt.retained_entries:,}",
                f"{record.compressed_tokens:,} tokens",
                f"{human_bytes(receipt.cache_bytes)} of {human_bytes(full)}",
                human_bytes(entry.size),
                record.created[:16].replace("T", " "),
            )
        )
    print_table(head, rows)
