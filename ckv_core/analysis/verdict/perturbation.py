"""Whether lower perturbation went with the outcome: sentences of a run's mechanism."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ckv_core.analysis.names import display_names
from ckv_core.analysis.verdict.base import State, listed, percent, spread
from ckv_core.request.identity import base_index
from ckv_core.request.variants import selector_of
from ckv_core.results.chain import mean_head_l1
from ckv_core.results.records import VariantResult

States = Mapping[int, State]
MOST_PAIRS = 2


@dataclass(frozen=True, slots=True)
class _Pair:
    """A variant with CriticalKV beside its base.

    Attributes:
        selector: `CriticalKV (paper)`.
        share: of heads that it moves less than its base.
        own, base: outcomes.
        base_name: as shown.
    """

    selector: str
    share: float
    own: State
    base: State
    base_name: str

    @property
    def kind(self) -> tuple[str, bool, State, State]:
        """Pairs of one kind are told in one sentence."""
        return self.selector, self.share > 0.5, self.own, self.base


# How surprising each outcome is beside the perturbation; the others are left out.
_ENDS: dict[tuple[bool, State, State], str] = {
    (True, "lost", "kept"): "yet loses the answer that {keeps}",
    (True, "lost", "lost"): "yet loses the answer too",
    (False, "kept", "lost"): "yet keeps the answer that {loses}",
    (True, "kept", "lost"): "and keeps the answer that {loses}",
    (False, "lost", "kept"): "and loses the answer that {keeps}",
}


def findings(variants: Sequence[VariantResult], states: States) -> tuple[str, ...]:
    """Sentences; empty where nothing was measured or there is one variant only."""
    return (*_sorted_by_it(variants, states), *_against_base(variants, states))


def _sorted_by_it(variants: Sequence[VariantResult], states: States) -> Iterable[str]:
    """Whether the mean head L1 parts those that keep the answer from those that lose it."""
    known = {i: mean_head_l1(variants[i]) for i in states}
    l1 = {i: value for i, value in known.items() if value is not None}
    kept = sorted((l1[i], i) for i in l1 if states[i] == "kept")
    lost = sorted((l1[i], i) for i in l1 if states[i] == "lost")
    if not kept or not lost:
        return
    (most, keeper), (least, loser) = kept[-1], lost[0]
    names = display_names(variants)
    if most < least:
        yield "Here the methods that kept the answer had the lower perturbation."
    elif lost[-1][0] < kept[0][0]:
        yield "Here the methods that lost the answer had the lower perturbation."
    elif least < most:
        yield (
            f"Lower perturbation did not help: {names[loser]} changes heads less than "
            f"{names[keeper]}, yet loses the answer."
        )


def _against_base(variants: Sequence[VariantResult], states: States) -> Iterable[str]:
    """CriticalKV beside the same method without it, the most surprising first."""
    kinds: dict[tuple[str, bool, State, State], list[_Pair]] = {}
    for pair in _pairs(variants, states):
        kinds.setdefault(pair.kind, []).append(pair)
    order = list(_ENDS)
    told = sorted((k for k in kinds if k[1:] in _ENDS), key=lambda k: order.index(k[1:]))
    for kind in told[:MOST_PAIRS]:
        yield _sentence(kinds[kind])


def _pairs(variants: Sequence[VariantResult], states: States) -> Iterable[_Pair]:
    names = display_names(variants)
    for index, state in states.items():
        base = base_index(variants, index)
        moved = variants[index].perturbation
        share = moved.improved_head_share if moved else None
        if base is None or base not in states or share is None:
            continue
        yield _Pair(_selector(variants[index]), share, state, states[base], names[base])


def _selector(variant: VariantResult) -> str:
    selector = selector_of(variant.spec)
    return selector.label_of(variant.params) if selector else ""


def _sentence(pairs: Sequence[_Pair]) -> str:
    first = pairs[0]
    shares = sorted(pair.share for pair in pairs)
    bases = list(dict.fromkeys(pair.base_name for pair in pairs))
    how_many = spread(percent(shares[0]), percent(shares[-1]))
    one = len(bases) == 1
    keeps, loses = (f"{bases[0]} keeps", f"{bases[0]} loses") if one else ("they keep", "they lose")
    end = _ENDS[first.kind[1:]].format(keeps=keeps, loses=loses)
    only = "" if first.share > 0.5 else "only "
    return f"{first.selector} changes {only}{how_many} of heads less than {listed(bases)}, {end}."
