"""TriAttention's offline table: mean queries before RoPE, and the mean lengths of their pairs.

As the authors' scripts/calibrate.py (arXiv:2604.04921), over the example texts.
"""

from collections.abc import Callable, Generator

import torch

from ckv_core.engine.head_tables import HeadTable, keep_table, written
from ckv_core.engine.needle_probe import counted
from ckv_core.engine.prefill import Needs, prefill
from ckv_core.engine.utility_profile import pieces
from ckv_core.methods.parts.views import Table
from ckv_core.methods.triattention import QueryCentres
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Progress


@torch.inference_mode()
def calibrate(
    loaded: LoadedModel, table: Table, should_stop: Callable[[], bool] = lambda: False
) -> Generator[Progress, None, HeadTable]:
    """Read the example texts and keep the means over all their queries."""
    info, texts, centres = loaded.info, pieces(loaded), QueryCentres()
    size = centres.size(info.query_heads, info.head_dim, 0)
    total = torch.zeros(info.layers, *size, dtype=torch.float64)
    for done, ids in enumerate(texts):
        reading = prefill(loaded, ids, Needs(observers=(centres,)), should_stop)
        result = yield from counted(reading, "query centres", done, len(texts))
        for layer, sums in result.observed[centres].items():
            total[layer] += sums.cpu()
        del result  # the next one takes as much room
    means = total / sum(map(len, texts))
    return keep_table(info, table, written(means.permute(2, 0, 1), ".7g"))
