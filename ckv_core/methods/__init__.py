"""All methods; importing this package registers them. Order here is the order on screen."""

from ckv_core.methods import full, streaming_llm, snapkv, pyramidkv, adakv  # noqa: F401, I001 - display order
from ckv_core.methods.base import METHODS, SELECTORS, Method, Selector

__all__ = ["METHODS", "SELECTORS", "Method", "Selector"]
