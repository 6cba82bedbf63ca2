"""The command `heads`: make or bring a table of how much each KV head matters."""

import argparse
from pathlib import Path

from ckv_core.cli.options import Commands, add_command, device_name, model_name
from ckv_core.cli.running import clear_progress, load, show_progress
from ckv_core.engine.head_tables import MAX_BYTES, keep_table, table_of
from ckv_core.errors import ConfigError
from ckv_core.methods.headkv import NEEDLE, table_name
from ckv_core.request.compare_request import CompareRequest
from ckv_core.runtime.terminal import say


def register(commands: Commands) -> None:
    told = "make or bring a head table for headkv"
    parser = add_command(commands, "heads", _heads, told)
    parser.add_argument("--model", metavar="NAME|PATH", help="default: $CKV_MODEL")
    parser.add_argument("--device", help="auto, cpu or cuda; default: $CKV_DEVICE or auto")
    parser.add_argument("--file", help="DuoAttention's full_attention_heads.tsv, or one like it")
    parser.add_argument("--name", default=NEEDLE, help="what SPECs call it: table=NAME")


def _heads(options: argparse.Namespace) -> int:
    name = str(table_name(options.name))
    if (options.file is None) != (name == NEEDLE):
        raise ConfigError("Give --file and another --name than 'needle', or neither for the probe.")
    model, device = model_name(options.model), device_name(options.device)
    loaded, _ = load(CompareRequest(context="-", model=model, device=device))
    clear_progress()
    if options.file is None:
        from ckv_core.engine.needle_probe import probe

        for event in probe(loaded):
            show_progress(event)
        clear_progress()
        table = table_of(loaded.info, name)
    else:
        table = keep_table(loaded.info, name, _text(Path(options.file)))
    for layer, row in enumerate(table):
        say(f"layer {layer + 1:>3}  " + "  ".join(f"{value:.3f}" for value in row))
    say(f"headkv:table={name} takes it with {loaded.info.name!r}.")
    return 0


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{str(path)!r} cannot be read: {said}.") from None
