"""A sweep before it runs: the grid of points, the request, and what it will cost. No torch."""

from dataclasses import dataclass, replace

from ckv_core.config import MAX_SWEEP_POINTS, CompareRequest
from ckv_core.errors import ConfigError
from ckv_core.knobs import KNOBS
from ckv_core.sweep_reading import spec_without
from ckv_core.variants import VariantSpec

ASK_ABOVE_S = 120.0  # a sweep that is expected to take longer must be confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGrid:
    """Budgets x alphas x methods.

    Attributes:
        methods: SPECs without budget and alpha.
        budgets: as in a SPEC.
        alphas: as in a SPEC; only `+critical` methods take them.
    """

    methods: tuple[str, ...]
    budgets: tuple[str, ...]
    alphas: tuple[str, ...] = ()

    def variants(self) -> tuple[str, ...]:
        """SPECs of all points, `full` first; a point that two rows of the grid share is one.

        Raises:
            ConfigError: an empty side, a wrong value, `full` or a SPEC with budget or alpha, or
                more points than a sweep takes.
        """
        if not self.methods:
            raise ConfigError("Choose at least one method to sweep.")
        budgets = tuple(dict.fromkeys(str(KNOBS["budget"].parse(text)) for text in self.budgets))
        alphas = tuple(dict.fromkeys(f"{KNOBS['alpha'].parse(text):g}" for text in self.alphas))
        if not budgets:
            raise ConfigError("Give at least one budget to sweep.")
        points: dict[str, None] = {"full": None}
        for method in self.methods:
            spec = VariantSpec.parse(method)
            _check_method(spec)
            takes_alpha = spec.selector == "critical"
            if takes_alpha and not alphas:
                raise ConfigError(f"Give at least one alpha to sweep {method!r} over.")
            for alpha in alphas if takes_alpha else ("",):
                for budget in budgets:
                    extra = {"budget": budget, **({"alpha": alpha} if alpha else {})}
                    points[VariantSpec.parse(_joined(spec.spec, extra)).spec] = None
        if len(points) > MAX_SWEEP_POINTS:
            raise ConfigError(
                f"The sweep has {len(points)} points, the full cache among them; the limit is "
                f"{MAX_SWEEP_POINTS}. Take fewer budgets, alphas or methods."
            )
        return tuple(points)

    @classmethod
    def around(cls, variants: tuple[str, ...]) -> "SweepGrid":
        """The smallest grid that holds these points; that of a sweep's request gives it again.

        Raises:
            ConfigError: a SPEC is wrong.
        """
        methods: dict[str, None] = {}
        budgets: dict[str, None] = {}
        alphas: dict[str, None] = {}
        for spec in map(VariantSpec.parse, variants):
            if spec.method.budget_rule == "all":
                continue
            methods[spec_without(spec.spec, "budget", "alpha")] = None
            budgets[str(spec.params["budget"])] = None
            if spec.selector == "critical":
                alphas[f"{spec.params['alpha']:g}"] = None
        return cls(methods=tuple(methods), budgets=tuple(budgets), alphas=tuple(alphas))

    def request(self, prompt: CompareRequest) -> CompareRequest:
        """The sweep of this grid on a prompt, model and number of new tokens."""
        return replace(prompt, kind="sweep", variants=self.variants(), defaults={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds that the parts of a sweep take; defaults are the default model on two CPU cores.

    Calibrated on SmolLM2-135M in float32, torch 2.13: prefill of 2,064 tokens 3.3 s and of
    8,000 tokens 21 s; selecting and measuring 51 points at 1,968 tokens 2.4 s, half of each
    point's share growing with the prompt; a decoding step of 1 row 45 ms and of 8 rows 77 ms.
    A busy machine takes up to twice as long.

    Attributes:
        prefill_token: per prompt token.
        prefill_pair: per prompt token squared.
        point: per point.
        point_token: per point and prompt token.
        step: per decoding step of a group of 32 rows.
        step_row: per decoding step and row.
    """

    prefill_token: float = 1.2e-3
    prefill_pair: float = 1.8e-7
    point: float = 0.025
    point_token: float = 1.2e-5
    step: float = 0.04
    step_row: float = 0.005


def estimate_seconds(
    prompt_tokens: int, points: int, max_new_tokens: int, rates: Rates | None = None
) -> float:
    """What a sweep is expected to take, the model loaded and the prompt not yet processed.

    Args:
        prompt_tokens: counted, or a guess.
        points: variants, `full` among them.
        max_new_tokens: generated per variant; 0 where the sweep only measures.
        rates: of another model or machine.
    """
    rates = rates or Rates()
    groups = -(-points // 31)
    prefill = prompt_tokens * (rates.prefill_token + prompt_tokens * rates.prefill_pair)
    measured = points * (rates.point + prompt_tokens * rates.point_token)
    decoded = max_new_tokens * (groups * rates.step + points * rates.step_row)
    return prefill + measured + decoded


def _check_method(spec: VariantSpec) -> None:
    if spec.method.budget_rule == "all":
        raise ConfigError("The full cache is part of every sweep; remove it from the methods.")
    fixed = [key for key in ("budget", "alpha") if key in spec.given]
    if fixed:
        raise ConfigError(
            f"{spec.spec!r} sets {' and '.join(fixed)}, which the sweep varies; leave that out."
        )


def _joined(spec: str, extra: dict[str, str]) -> str:
    pairs = ",".join(f"{key}={value}" for key, value in extra.items())
    return f"{spec},{pairs}" if ":" in spec else f"{spec}:{pairs}"
