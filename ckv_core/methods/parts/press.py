"""A method's counterpart in kvpress: the class, and which parameter gives which of its arguments.

Their `kvpress` values are what kvpress 0.5.5 does; docs/reference/parity.md has how far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ckv_core.methods.parameters import ParameterValue

VERSION = "0.5.5"
Argument = int | float | bool
# Presses from the outermost in, each with its arguments; the last one gets compression_ratio.
Chain = tuple[tuple[str, Mapping[str, Argument]], ...]

_ADAPTIVE = "AdaKVPress"


@dataclass(frozen=True, slots=True)
class Press:
    """The class of a method."""

    name: str  # in kvpress
    # Parameters by the arguments that they give; `on` and `off` become true and false.
    arguments: Mapping[str, str] = field(default_factory=dict)
    around: Press | None = None  # the press that it wraps
    scores: bool = True  # whether CriticalKV's presses can wrap it

    @property
    def parameters(self) -> frozenset[str]:
        """Parameters that give an argument, of the press that it wraps too."""
        return frozenset(self.arguments.values()) | (
            self.around.parameters if self.around else set()
        )

    @property
    def written(self) -> str:
        """`AdaKVPress(SnapKVPress)`."""
        return f"{self.name}({self.around.written})" if self.around else self.name

    def chain(self, parameters: Mapping[str, ParameterValue], *, critical: bool) -> Chain:
        """The presses of a variant; with CriticalKV's, which replaces AdaKV's, if `critical`."""
        own = {name: _value(parameters[parameter]) for name, parameter in self.arguments.items()}
        inner = self.around.chain(parameters, critical=False) if self.around else ()
        if not critical:
            return ((self.name, own), *inner)
        stages = {
            "epsilon": _value(parameters["epsilon"]),
            "first_stage_ratio": _value(parameters["alpha"]),
        }
        if self.name == _ADAPTIVE:
            return (("CriticalAdaKVPress", own | stages), *inner)
        return (("CriticalKVPress", stages), (self.name, own), *inner)


def press_code(chain: Chain, first: str = "") -> str:
    """The presses as a Python expression; `first` stands before the innermost one's arguments."""
    (name, arguments), *inner = chain
    head = press_code(tuple(inner), first) if inner else first
    written = (f"{key}={value!r}" for key, value in arguments.items())
    return f"{name}({', '.join(filter(None, (head, *written)))})"


def _value(value: ParameterValue) -> Argument:
    return value == "on" if isinstance(value, str) else value


SNAPKV = Press("SnapKVPress", {"window_size": "window", "kernel_size": "kernel"})
EXPECTED_ATTENTION = Press(
    "ExpectedAttentionPress",
    {
        "n_future_positions": "future",
        "n_sink": "sinks",
        "use_vnorm": "value_size",
        "epsilon": "offset",
    },
)


def adaptive(around: Press) -> Press:
    return Press(_ADAPTIVE, {"alpha_safeguard": "safeguard"}, around)
