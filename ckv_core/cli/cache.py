"""The command `cache`: keep a compressed context, ask it questions, take it elsewhere."""

import shutil
from collections.abc import Iterable
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from ckv_core.base.terminal import say
from ckv_core.base.whole_file import write_whole
from ckv_core.cli import running
from ckv_core.cli.options import JsonOption, check_json_path, command, request_of
from ckv_core.cli.tables import indented, print_table
from ckv_core.errors import CkvError
from ckv_core.experiment.kept_table import kept_table
from ckv_core.records.codec import record_json
from ckv_core.records.events import Generated, RunEvent, RunFinished
from ckv_core.records.kept_caches import KeptEntry, KeptFolder, read_record
from ckv_core.records.work_requests import AskRequest, KeepRequest

app = Typer(name="cache", help="Compress a context once, ask it many times.")
NameArgument = Annotated[str, Argument(metavar="NAME", help="of the kept cache")]
FileArgument = Annotated[str, Argument(metavar="FILE", help="safetensors")]
QuestionsOption = Annotated[
    list[str], Option(metavar="TEXT", help="about the context; repeat for several")
]
ModelOption = Annotated[
    str | None,
    Option(metavar="NAME|PATH", help="the same weights; default: by the receipt's name"),
]


@command(app, "keep", "context variants budget alpha protect model device dtype", variants=MISSING)
def _keep(chosen: dict[str, Any], name: NameArgument, json: JsonOption = None) -> None:
    """Compress a context and keep its cache."""
    check_json_path(json)
    folder = KeptFolder()
    request = KeepRequest(run=request_of(chosen), path=str(folder.free(name)))
    request.comparison()  # refuses before the model is loaded
    loaded, _ = running.load(request)
    from ckv_core.engine.kept import keep

    for _ in running.followed(keep(request, loaded), request):
        pass
    entry = folder.entry(name)
    running.deliver(json, lambda: _document(entry), lambda: _show([entry]))


@command(app, "ask", "max_new_tokens ignore_eos device", device="auto")
def _ask(
    chosen: dict[str, Any],
    name: NameArgument,
    question: QuestionsOption,
    model: ModelOption = None,
    json: JsonOption = None,
) -> None:
    """Answer questions, each from the cache as it was kept; --json writes a line for each."""
    check_json_path(json)
    path = KeptFolder().find(name)
    made_by = read_record(path).model
    chosen |= {"path": str(path), "model": model or made_by.name, "dtype": made_by.dtype}
    requests = [AskRequest(question=each, **chosen) for each in question]
    for request in requests:
        request.validate()
    loaded, _ = running.load(requests[0])
    from ckv_core.engine.kept import ask

    with running.json_lines(json) as write:
        for request in requests:
            answer = _answer(running.followed(ask(request, loaded), request))
            write({"cache": name, "question": request.question, **answer})
            if json != "-":
                say(f"> {request.question}")
                say(indented(answer["text"]))


def _answer(events: Iterable[RunEvent]) -> dict[str, Any]:
    """The text with its tokens and times, of the events of one question."""
    answer: dict[str, Any] = {}
    for event in events:
        if isinstance(event, Generated):
            answer["text"], answer["token_ids"] = event.texts[0], event.token_ids[0]
            answer["stopped"] = event.stopped[0]
        elif isinstance(event, RunFinished):
            answer["timings_ms"] = dict(event.timings_ms)
    return answer


@command(app, "list")
def _list(json: JsonOption = None) -> None:
    """List the kept caches."""
    entries = KeptFolder().entries()
    document = [_document(entry) for entry in entries]
    running.deliver(json, lambda: document, lambda: _show(entries))


@command(app, "export")
def _export(name: NameArgument, file: FileArgument) -> None:
    """Copy a cache to a new safetensors file, receipt included."""
    source, target = KeptFolder().find(name), Path(file)
    read_record(source)  # a spoilt file goes nowhere
    if target.exists():
        raise CkvError(f"{file!r} is there already; choose another name.")
    write_whole(target, lambda part: shutil.copyfile(source, part))
    say(f"{file} has the cache, its receipt and the whole context as text.")


@command(app, "import")
def _import(file: FileArgument, name: NameArgument) -> None:
    """Keep a copy of a file that `cache export` wrote."""
    record = read_record(Path(file))
    KeptFolder().add(name, lambda path: shutil.copyfile(file, path))
    say(f"{name} is kept: {record.spec} of {record.model.name}.")


@command(app, "delete")
def _delete(name: NameArgument) -> None:
    """Delete a cache."""
    KeptFolder().delete(name)


def _document(entry: KeptEntry) -> dict[str, Any]:
    receipt = None if entry.record is None else record_json(entry.record)
    return {"name": entry.name, "file_bytes": entry.size, "receipt": receipt}


def _show(entries: list[KeptEntry]) -> None:
    if not entries:
        say("No cache is kept; `cache keep` makes one.")
        return
    print_table(kept_table(entries))
