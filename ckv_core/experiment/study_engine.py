"""The model of this process as a study's engine. Imports torch."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from ckv_core.base.device_memory import keep_for_good
from ckv_core.engine.compare import check_length, environment
from ckv_core.engine.prefill_cache import KEPT_PREFILL_BYTES, PrefillCache
from ckv_core.engine.prompt import build_prompt, prompt_of
from ckv_core.engine.together import compare_together
from ckv_core.errors import CkvError
from ckv_core.experiment.study import Sample
from ckv_core.experiment.study_runner import (
    Results,
    Served,
    Todo,
    run_samples,
)
from ckv_core.experiment.tasks import make_samples
from ckv_core.methods.plug_ins import watched
from ckv_core.models.loading import load_model
from ckv_core.models.steps import Report, silent
from ckv_core.records.events import Outcome, TokensCounted
from ckv_core.records.records import ModelInfo
from ckv_core.records.run_request import RunRequest


class LocalEngine:
    """Loads one model and runs samples on it; prompts that begin alike share their prefill.

    Once `is_ending` is set it begins no further sample and ends those that it began.
    """

    workers = 1
    is_ending = False

    def __init__(self, model: str, device: str, report: Report = silent) -> None:
        """Load; ModelError if the model cannot be loaded."""
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self._loaded = load_model(model, device, "auto", report=report)
        keep_for_good()
        self._prefills = PrefillCache(KEPT_PREFILL_BYTES)
        self.info: ModelInfo = self._loaded.info
        self.parameters: int = self._loaded.parameters
        self.environment = environment()

    def samples(self, study: RunRequest) -> tuple[Sample, ...]:
        """The samples of a study's task, made to length with this model's tokens."""

        def count(context: str, question: str) -> int:
            tokenizer = self._loaded.tokenizer
            return build_prompt(tokenizer, context, question, study.scenario).tokens

        return make_samples(study.data, count)

    def sizes(self, study: RunRequest, samples: Sequence[Sample]) -> dict[str, TokensCounted]:
        """Of the prompts that can be tokenised, by sample."""
        sizes = {}
        for sample in samples:
            try:
                sizes[sample.id] = self._size(sample.request(study))
            except CkvError:
                continue  # it becomes that sample's failure
        return sizes

    def results(self, study: RunRequest, todo: Sequence[Todo], served: Served) -> Iterator[Results]:
        """Results of the given points, sample by sample; `study_runner.Engine` has the rules."""
        served(self.info, self.environment)
        parts = [part for spec in study.variant_specs().values() for part in spec.parts]
        left = takewhile(lambda _: not self.is_ending, todo)
        yield from watched(run_samples(study, left, self), parts)

    def size(self, request: RunRequest) -> TokensCounted:
        """Of a prompt that is not too long.

        Raises:
            PromptError: it is, or cannot be tokenised.
        """
        found = self._size(request)
        check_length(found.tokens, request.max_new_tokens, self.info.context_limit)
        return found

    def run_all(self, requests: Iterable[RunRequest]) -> Iterator[Outcome]:
        """The place of each and its result, or why it has none; rows of several share a batch."""
        return compare_together(requests, self._loaded, prefills=self._prefills)

    def _size(self, request: RunRequest) -> TokensCounted:
        prompt = prompt_of(self._loaded.tokenizer, request)
        return TokensCounted(
            prompt.tokens, prompt.compressed_tokens, question_tokens=len(prompt.question)
        )
