"""Teacher-forced fidelity of all variants: the strips under the texts as one chart."""

import numpy as np
import plotly.graph_objects as go

from ckv_core.results.events import RunResult
from ckv_core.results.quantities import ARRAYS
from ui.charts.layout import new_figure, ranked_names
from ui.looks.palette import looks_of
from ui.tables.measured import holders


def fidelity_figure(result: RunResult) -> go.Figure:
    """KL at each token of the full cache's text; a cross where the first choice is another.

    Definition: sum p log(p/q) of the full cache's and the variant's next-token distributions, both
    after the same tokens; see docs/definitions.md. n = the tokens of one text.
    """
    names, indices = ranked_names(result), holders(result, "forced_kl")
    positions = len(result.variants[indices[0]].analysis["forced_kl"])
    looks = looks_of(result.variants)
    unit = ARRAYS["forced_kl"].unit_name
    figure = new_figure(
        "Fidelity on the full cache's text",
        f"n = {positions:,} tokens; cross: another first choice",
        legend_rows=len(indices),
    )
    for index in indices:
        arrays, look = result.variants[index].analysis, looks[index]
        kl = arrays["forced_kl"].astype(np.float32)
        tokens = np.arange(1, len(kl) + 1, dtype=np.int16)
        other = arrays.get("forced_top1", np.ones_like(kl)) == 0
        line = go.Scatter(
            x=tokens,
            y=kl,
            name=names[index],
            legendgroup=str(index),
            mode="lines",
            line=look.line(),
            hovertemplate=f"token %{{x}}: %{{y:.4g}} {unit}",
        )
        crosses = go.Scatter(
            x=tokens[other],
            y=kl[other],
            legendgroup=str(index),
            showlegend=False,
            mode="markers",
            marker={"color": look.color, "symbol": "x", "size": 8},
            hoverinfo="skip",
        )
        figure.add_traces([line, crosses])
    figure.update_xaxes(title_text="token of the full cache's text")
    figure.update_yaxes(title_text=f"KL ({unit})", rangemode="tozero")
    return figure
