"""Small public instruct models that the engine serves, and the memory that they need. No torch.

Figures are those of their public configs on the Hugging Face Hub.
"""

from dataclasses import dataclass

from ckv_core.request.compare_request import DEFAULT_MODEL

FLOAT32_BYTES = 4  # what `--dtype auto` is on a CPU


@dataclass(frozen=True, slots=True)
class SuggestedModel:
    """One model as its config has it.

    Attributes:
        name: what a run request takes.
        parameters: without those that it has twice (tied embeddings).
        context: tokens that it was trained for.
        license: of the weights.
    """

    name: str
    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    context: int
    license: str

    @property
    def weights_bytes(self) -> int:
        """In float32."""
        return self.parameters * FLOAT32_BYTES

    @property
    def token_bytes(self) -> int:
        """Keys and values of one prompt token in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * FLOAT32_BYTES


SUGGESTED = (
    SuggestedModel(DEFAULT_MODEL, 134_515_008, 30, 3, 64, 8_192, "Apache-2.0"),
    SuggestedModel(
        "HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, 32, 5, 64, 8_192, "Apache-2.0"
    ),
    SuggestedModel("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 24, 2, 64, 32_768, "Apache-2.0"),
    SuggestedModel("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304, 28, 2, 128, 32_768, "Apache-2.0"),
    SuggestedModel(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 24, 32, 64, 8_192, "Apache-2.0"
    ),
    SuggestedModel("Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096, 36, 8, 128, 262_144, "Apache-2.0"),
    SuggestedModel("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 28, 4, 128, 32_768, "Apache-2.0"),
)
