"""The command `heads`: make or bring a table of how much each KV head matters."""

from functools import partial
from typing import Annotated, Any

from typer import Option, Typer

from ckv_core.cli.options import command, read_text
from ckv_core.cli.running import clear_progress, load, show_progress
from ckv_core.engine.head_tables import keep_table, table_of
from ckv_core.errors import ConfigError
from ckv_core.methods.headkv import NEEDLE, table_name
from ckv_core.request.compare_request import CompareRequest
from ckv_core.runtime.terminal import say

app = Typer()
FileOption = Annotated[
    str | None,
    Option(
        metavar="FILE",
        parser=partial(read_text, what="head table"),
        help="DuoAttention's full_attention_heads.tsv, or one like it",
    ),
]
NameOption = Annotated[str, Option(metavar="NAME", help="what SPECs call it: table=NAME")]


@command(app, "heads", "model device")
def _heads(asked: dict[str, Any], file: FileOption = None, name: NameOption = NEEDLE) -> None:
    """Make or bring a head table for headkv."""
    name = str(table_name(name))
    if (file is None) != (name == NEEDLE):
        raise ConfigError("Give --file and another --name than 'needle', or neither for the probe.")
    loaded, _ = load(CompareRequest(context="-", **asked))
    clear_progress()
    if file is None:
        from ckv_core.engine.needle_probe import probe

        for event in probe(loaded):
            show_progress(event)
        clear_progress()
        table = table_of(loaded.info, name)
    else:
        table = keep_table(loaded.info, name, file)
    for layer, row in enumerate(table):
        say(f"layer {layer + 1:>3}  " + "  ".join(f"{value:.3f}" for value in row))
    say(f"headkv:table={name} takes it with {loaded.info.name!r}.")
