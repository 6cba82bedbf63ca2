"""All methods; importing this package registers them. Order here is the order on screen."""
# ruff: noqa: I001 - in that order

from ckv_core.methods.parameters import Parameter
import ckv_core.methods.full
import ckv_core.methods.quest
import ckv_core.methods.rocketkv
import ckv_core.methods.streaming_llm
import ckv_core.methods.snapkv
import ckv_core.methods.pyramidkv
import ckv_core.methods.adakv
import ckv_core.methods.headkv
import ckv_core.methods.duo_attention
import ckv_core.methods.simlayerkv
import ckv_core.methods.cake
import ckv_core.methods.defensivekv
import ckv_core.methods.chunkkv
import ckv_core.methods.laprox
import ckv_core.methods.dropkv
import ckv_core.methods.caote
import ckv_core.methods.lava
import ckv_core.methods.observed_attention
import ckv_core.methods.h2o
import ckv_core.methods.vatp
import ckv_core.methods.random
import ckv_core.methods.knorm
import ckv_core.methods.keydiff
import ckv_core.methods.lagkv
import ckv_core.methods.curdkv
import ckv_core.methods.expected_attention
import ckv_core.methods.lu_kv
import ckv_core.methods.kvzip
import ckv_core.methods.kvzip_threshold
import ckv_core.methods.kvgrad
import ckv_core.methods.attention_matching
import ckv_core.methods.capkv
import ckv_core.methods.compactor
import ckv_core.methods.tova
import ckv_core.methods.scissorhands
import ckv_core.methods.r_kv
import ckv_core.methods.triattention  # noqa: F401 - each registers its own
from ckv_core.methods import plug_ins
from ckv_core.methods.base import METHODS, SELECTORS, Method, all_parameters
from ckv_core.methods.parts.steps import POLICIES
from ckv_core.methods.parts.store import STORES

__all__ = [
    "METHODS",
    "PARAMETERS",
    "POLICIES",
    "SELECTORS",
    "SELECTOR_PARAMETERS",
    "STORES",
    "Method",
]

plug_ins.load_all()

PARAMETERS: dict[str, Parameter] = all_parameters()
# Those that only a selector after a SPEC's '+' reads.
SELECTOR_PARAMETERS = frozenset(
    parameter.name for part in SELECTORS.values() for parameter in part.parameters
)
