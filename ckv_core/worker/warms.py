"""Models that wait to be loaded ahead of a run, and those that are not tried again. No torch."""

import time
from collections import OrderedDict

from ckv_core.worker.messages import ModelStatus, Warm

KEPT = 4
REFUSED_S = 600.0  # a model that hung is not loaded ahead for so long; a run may try
PUT_OFF = "{model} is not loaded ahead, for others are; it is loaded when a run asks for it."


class Warms:
    """The newest few wishes, the oldest of them first. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Warm] = OrderedDict()
        self._refused: dict[str, tuple[float, str]] = {}

    def add(self, warm: Warm) -> ModelStatus | None:
        """Keep a wish; what to tell if this or another model will not be loaded for it."""
        until, sentence = self._refused.get(warm.model, (0.0, ""))
        if time.monotonic() < until:
            return ModelStatus(warm.model, False, sentence, failed=True)
        self._waiting.pop(warm.model, None)
        self._waiting[warm.model] = warm
        if len(self._waiting) <= KEPT:
            return None
        model, _ = self._waiting.popitem(last=False)
        return ModelStatus(model, False, PUT_OFF.format(model=model))

    def take(self) -> Warm | None:
        """Hand out the oldest wish."""
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def remove(self, model: str) -> bool:
        """Give a wish up; False if there is none."""
        return self._waiting.pop(model, None) is not None

    def refuse(self, model: str, sentence: str) -> None:
        """Do not try this model again for a while; the sentence tells why."""
        now = time.monotonic()
        self._refused = {name: kept for name, kept in self._refused.items() if now < kept[0]}
        self._refused[model] = (now + REFUSED_S, sentence)
