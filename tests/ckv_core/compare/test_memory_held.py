"""What a run says it holds while it decodes is what lives in this process because of it."""

import gc

import torch

from ckv_core.compare.compare import compare
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunResult, VariantMeasured
from tests.factories.models import tiny_model
from tests.reference.report import report


def storages() -> dict[int, int]:
    """Bytes of every storage that some live tensor has, by address."""
    gc.collect()
    # type(), for isinstance would ask proxies of other libraries what they are
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    found = [each.untyped_storage() for each in tensors if each.layout == torch.strided]
    return {each.data_ptr(): each.nbytes() for each in found if each.nbytes()}


def test_held_is_what_the_tensors_of_the_run_take() -> None:
    loaded, result, live = tiny_model("llama"), RunResult(), 0
    asked = CompareRequest(
        context=report()[:1_500],
        variants=("full", "snapkv", "adakv+critical", "streaming_llm", "h2o", "adakv:store=int8"),
        defaults={"budget": "40%"},
        max_new_tokens=12,
        ignore_eos=True,
    )
    before = storages()
    for event in compare(asked, loaded):
        result.apply(event)
        if isinstance(event, VariantMeasured) and not live:
            live = sum(size for at, size in storages().items() if at not in before)
    held = result.memory["held"]
    # beside it: logits and hidden states of the measured step, indices of the slots
    assert held <= live < 1.1 * held
    assert held > result.memory["cache"]
