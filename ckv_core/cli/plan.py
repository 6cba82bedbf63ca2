"""The command `plan`: how many requests fit, from a model's config alone."""

from typing import Annotated

from typer import Option, Typer

from ckv_core.base.terminal import say
from ckv_core.cli.options import EXAMPLES, JsonOption, check_json_path, command
from ckv_core.cli.running import deliver
from ckv_core.cli.tables import print_table
from ckv_core.experiment.plan import FORMULAS, Setting, parse_bytes, plan, plan_document, plan_table
from ckv_core.models.catalog import planned_shape
from ckv_core.models.shape import CUDA_CHUNK
from ckv_core.records.variants import VariantSpec

app = Typer()
ModelOption = Annotated[
    str, Option(metavar="NAME|FOLDER|CONFIG.json", help="its config is read, and no weights")
]
MemoryOption = Annotated[str, Option(metavar="SIZE", help="of the device: 80GiB (2^30) or 80GB")]
PromptOption = Annotated[int, Option(metavar="N", help="tokens of a request's prompt")]
OutputOption = Annotated[int, Option(metavar="T", help="tokens that a request generates")]
VariantOption = Annotated[
    list[str], Option(metavar="SPEC", help="a method to plan beside the full cache")
]
DtypeOption = Annotated[str, Option(metavar="NAME", help="float32, bfloat16 or float16")]
BandwidthOption = Annotated[str, Option(metavar="SPEED", help="of the device's memory")]
ChunkOption = Annotated[int, Option(metavar="N", help="prompt tokens that are read in one pass")]
ExplainOption = Annotated[bool, Option("--explain", help="print each number's formula, too")]


@command(app, "plan", epilog=EXAMPLES)
def _plan(  # noqa: PLR0913, PLR0917 - the arguments are the command's
    model: ModelOption,
    memory: MemoryOption,
    prompt: PromptOption,
    output: OutputOption = 256,
    variant: VariantOption = [],  # noqa: B006 - typer copies it
    dtype: DtypeOption = "bfloat16",
    bandwidth: BandwidthOption = "3.35TB/s",
    chunk: ChunkOption = CUDA_CHUNK,
    explain: ExplainOption = False,
    json: JsonOption = None,
) -> None:
    """Compute how many requests fit, without weights; nothing is measured."""
    check_json_path(json)
    shape = planned_shape(model)
    setting = Setting(
        memory=parse_bytes(memory, "memory"),
        prompt=prompt,
        output=output,
        dtype=dtype,
        bandwidth=parse_bytes(bandwidth, "bandwidth"),
        chunk=chunk,
    )
    rows = plan(shape, setting, [VariantSpec.parse(text) for text in variant])

    def show() -> None:
        say(
            f"{shape.name}: {shape.parameters:,} numbers, {shape.layers} layers x "
            f"{shape.kv_heads} KV heads x {shape.head_dim}; "
            f"weights {rows[0].weights_bytes:,} bytes in {dtype}"
        )
        print_table(plan_table(shape, setting, rows))
        for name, formula in FORMULAS.items() if explain else ():
            say(f"\n{name} = {formula}")

    deliver(json, lambda: plan_document(shape, setting, rows), show)
