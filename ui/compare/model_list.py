"""The models that the menu suggests, with size, context and memory. No Gradio, no torch."""

from collections.abc import Collection
from typing import Any

import psutil

from ckv_core.models.catalog import SUGGESTED


def models_value(ready: Collection[str]) -> dict[str, Any]:
    """Value of the ModelList component; `ready` names the models that are here already."""
    return {
        "memory": int(psutil.virtual_memory().total),
        "rows": [
            {
                "name": model.name,
                "parameters": model.parameters,
                "context": model.context,
                "license": model.license,
                "weights": model.weights_bytes,
                "token": model.token_bytes,
                "ready": model.name in ready,
            }
            for model in SUGGESTED
        ],
    }


def suggested_name(given: object) -> str | None:
    """The model that a client picked; None if it is none of the list."""
    return next((model.name for model in SUGGESTED if model.name == given), None)
