"""KV-cache eviction: capture, score, allocate, select, compact, decode, measure.

    import ckv_core as ckv
    run = ckv.compare(text, question, methods=["snapkv", "adakv+critical"], budgets=["10%"])

Importing this package costs nothing; torch is loaded by the modules that compute.
"""

from typing import TYPE_CHECKING

from ckv_core.base.version import __version__ as __version__

if TYPE_CHECKING:
    from ckv_core.experiment.interface import Run as Run
    from ckv_core.experiment.interface import compare as compare
    from ckv_core.experiment.interface import why as why

__all__ = ["Run", "compare", "why"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ckv_core' has no attribute {name!r}")
    from ckv_core.experiment import interface

    return getattr(interface, name)
