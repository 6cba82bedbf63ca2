"""Every variant of one option beside its method: what the whole machine has to carry."""

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, SELECTORS, STORES
from ckv_core.records.variants import VariantSpec

# Options that a method may take; which one takes which, its own reader says.
OPTIONS = (
    *((f"store {store}", f"store={store}") for store in STORES if store != "plain"),
    ("layout layer", "layout=layer"),
    ("layout page", "layout=page:16"),
    ("blocks", "prefill=blocks:32"),
    ("preset", "preset=kvpress"),
    ("evicting", "window=4,every=8,to=6"),
    ("evicting int8", "window=4,every=8,to=6,store=int8"),
    ("evicting", "rolling=on"),
    ("evicting", "rolling=on,positions=cache"),
    ("evicting", "buffer=3"),
    ("evicting", "drop=0.1"),
    ("evicting", "while_generating=grow"),
    ("scores", "pool=avg,group=max"),
    ("scores", "select=chunkkv"),
    ("scores", "rule=laprox"),
)


def combinations(budget: str = "25%") -> dict[str, list[str]]:
    """SPECs by the name of what they have in common; each method takes what its reader allows."""
    found: dict[str, list[str]] = {}
    for method in METHODS:
        if not method.evicts:
            continue
        found.setdefault("plain", []).append(f"{method.name}:budget={budget}")
        for selector in SELECTORS:
            for preset in ("", ",preset=kvpress"):
                spec = f"{method.name}+{selector}:budget={budget}{preset}"
                found.setdefault(f"+{selector}", []).extend(_allowed(spec))
        for group, option in OPTIONS:
            spec = f"{method.name}:budget={budget},{option}"
            found.setdefault(group, []).extend(_allowed(spec))
    return found


def _allowed(spec: str) -> list[str]:
    try:
        VariantSpec.parse(spec)
    except ConfigError:
        return []
    return [spec]
