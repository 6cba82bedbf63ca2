"""The model of this process as a study's engine. Imports torch."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence

from ckv_core.engine.compare import check_length, environment
from ckv_core.engine.prefill_cache import KEPT_PREFILL_BYTES, PrefillCache
from ckv_core.engine.prompt import build_prompt
from ckv_core.engine.together import compare_together
from ckv_core.errors import CkvError
from ckv_core.experiment.study import Key, Sample, Study
from ckv_core.experiment.study_runner import (
    Commit,
    Progress,
    PromptSize,
    Served,
    request_of,
    run_study,
)
from ckv_core.experiment.tasks import Count, make_samples
from ckv_core.models.loading import load_model
from ckv_core.models.steps import Report, silent
from ckv_core.records.events import Outcome
from ckv_core.records.records import ModelInfo
from ckv_core.records.run_request import RunRequest


class LocalEngine:
    """Loads one model and runs samples on it; prompts that begin alike share their prefill."""

    workers = 1

    def __init__(self, model: str, device: str, report: Report = silent) -> None:
        """Load; ModelError if the model cannot be loaded."""
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self._loaded = load_model(model, device, "auto", report=report)
        self._prefills = PrefillCache(KEPT_PREFILL_BYTES)
        self.info: ModelInfo = self._loaded.info
        self.parameters: int = self._loaded.parameters
        self.environment = environment()

    def samples(self, study: Study) -> tuple[Sample, ...]:
        """The samples of a study's task, made to length with this model's tokens."""
        return make_samples(study.data, self._counter(study))

    def sizes(self, study: Study, samples: Sequence[Sample]) -> dict[str, PromptSize]:
        """Of the prompts that can be tokenised, by sample."""
        sizes = {}
        for sample in samples:
            try:
                sizes[sample.id] = self._size(request_of(study, sample, study.points()))
            except CkvError:
                continue  # it becomes that sample's failure
        return sizes

    def run_study(
        self,
        study: Study,
        samples: Sequence[Sample],
        standing: Collection[Key],
        commit: Commit,
        served: Served,
    ) -> Iterator[Progress]:
        """What is left of a study; `runner.run_study` has the arguments.

        `served` gets the model and the versions before the first result, and may refuse them.
        """
        served(self.info, self.environment)
        yield from run_study(study, samples, standing, self, commit)

    def size(self, request: RunRequest) -> PromptSize:
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

    def _counter(self, study: Study) -> Count:
        def count(context: str, question: str) -> int:
            request = RunRequest(
                context=context, question=question, scenario=study.scenario, model=study.model
            )
            return self._size(request).tokens

        return count

    def _size(self, request: RunRequest) -> PromptSize:
        texts = (request.context, request.question)
        prompt = build_prompt(self._loaded.tokenizer, *texts, request.scenario)
        return PromptSize(prompt.tokens, prompt.compressed_tokens, len(prompt.question))
