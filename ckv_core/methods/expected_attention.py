"""Expected Attention, with equal budgets and, as kvpress's registry has it, with AdaKV's."""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.adaptive import ADAPTIVE
from ckv_core.methods.parts.expected import ExpectedAttention, OffsetExpectedAttention
from ckv_core.methods.parts.press import EXPECTED_ATTENTION, adaptive
from ckv_core.methods.parts.shares import UNIFORM

METHODS.register(
    Method(
        name="expected_attention",
        label="Expected Attention",
        summary="Keeps what queries like the prompt's would attend to in the next `future` tokens.",
        source="Devoto et al. 2025, arXiv:2510.00636",
        scorer=ExpectedAttention(),
        budget_rule=UNIFORM,
        press=EXPECTED_ATTENTION,
    )
)
METHODS.register(
    Method(
        name="ada_expected_attention",
        label="Expected Attention, AdaKV",
        summary="Expected Attention's scores; the heads of a layer share its budget as in AdaKV.",
        source="Devoto et al. 2025, arXiv:2510.00636",
        scorer=OffsetExpectedAttention(),
        budget_rule=ADAPTIVE,
        press=adaptive(EXPECTED_ATTENTION),
    )
)
