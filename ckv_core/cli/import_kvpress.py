"""The command `import-kvpress`: what a press keeps, as kept positions for `compare --own`."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from ckv_core.base.terminal import say
from ckv_core.cli import running
from ckv_core.cli.options import check_json_path, command
from ckv_core.errors import CkvError, ConfigError
from ckv_core.kvpress.sets import (
    Job,
    kept_by_presses,
    kvpress_python,
    parse_press,
)
from ckv_core.methods.parameters import DEFAULT_BUDGET, Budget
from ckv_core.methods.parts.press import VERSION, Chain, press_code
from ckv_core.records.external_selection import MAX_LABEL, ExternalSelection, own_to_json, pack
from ckv_core.records.run_request import RunRequest

app = Typer()
EPILOG = """\
PRESS is a SPEC, read under preset=kvpress, or presses in Python.

  adakv+critical:window=32
  AdaKVPress(CURPress(num_sinks=4), alpha_safeguard=0.1)

A press that takes no compression_ratio decides by itself how much it keeps.
"""


FIELDS = "context question budget scenario model"
PressArgument = Annotated[str, Argument(metavar="PRESS", help="what to run; see below")]
JsonOption = Annotated[str, Option(metavar="FILE|-", help="for the kept positions; - for stdout")]
ModuleOption = Annotated[
    Path | None, Option(metavar="FILE", help="a Python file with presses of your own; it is run")
]
PythonOption = Annotated[
    str | None,
    Option(metavar="FILE", help="a Python that has kvpress; default: that of make kvpress"),
]


@command(app, "import-kvpress", FIELDS, EPILOG, budget=DEFAULT_BUDGET)
def _import(
    chosen: dict[str, Any],
    press: PressArgument,
    json: JsonOption,
    module: ModuleOption = None,
    python: PythonOption = None,
) -> None:
    """Run a press of kvpress and write what it keeps, for compare --own."""
    chain, budget = parse_press(press), Budget.parse(chosen.pop("budget"))
    interpreter = kvpress_python(python)
    check_json_path(json)
    request = RunRequest(device="cpu", **chosen)
    request.validate()
    if module and not module.is_file():
        raise ConfigError(f"There is no file {str(module)!r}; check --module.")
    own, kept = _run(request, chain, budget, (interpreter, module))
    shown = f"{own.label}: {kept:,} entries. Next: compare --own {json}"
    running.deliver(json, lambda: own_to_json([own])[0], lambda: say(shown))


def _run(
    request: RunRequest, chain: Chain, budget: Budget, where: tuple[str, Path | None]
) -> tuple[ExternalSelection, int]:
    """The kept positions, and how many they are. `where`: the Python, and a file of presses."""
    python, module = where
    loaded, _ = running.load(request)
    info, prompt = loaded.info, running.tokenised(request, loaded)
    del loaded  # kvpress's process loads the weights again
    tokens = prompt.token_ids[: prompt.compressed_tokens]
    per_token = 2 * info.head_dim * 4 * len(info.evictable_layers) * info.kv_heads
    entries = min(budget.resolve(len(tokens), per_token), len(tokens))
    jobs = [Job(0, chain, entries)]
    folder = checkpoint_folder(request.model)
    (kept,) = kept_by_presses(python, folder, [tokens], jobs, module)
    running.clear_progress()
    if isinstance(kept, CkvError):
        raise kept
    mean = kept[list(info.evictable_layers)].sum(-1).mean()
    size = budget if abs(mean - entries) <= 1 else f"{mean:.0f} entries"
    label = f"kvpress {VERSION}, {size}: {press_code(chain)}"
    rows = [
        tuple(pack(tuple(head.nonzero()[0].tolist())) for head in layer)
        if place in info.evictable_layers
        else None  # layers with a sliding window are not evicted by `compare`
        for place, layer in enumerate(kept)
    ]
    own = ExternalSelection(
        label=label[:MAX_LABEL],
        rows=tuple(rows),
        layers=info.layers,
        kv_heads=info.kv_heads,
        sha256=info.sha256,
        compressed_tokens=prompt.compressed_tokens,
        token_ids=pack(tokens),
    )
    return own, int(kept.sum())


def checkpoint_folder(name: str) -> Path:
    """Where a model lies that has been loaded."""
    from ckv_core.models.checkpoint import find_checkpoint
    from ckv_core.models.loading import converted
    from ckv_core.models.steps import silent

    return converted(find_checkpoint(name, silent, with_weights=True), silent).folder
