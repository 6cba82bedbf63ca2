"""An engine without a model whose variants all say the same; for studies."""

import time
from collections.abc import Callable, Iterator

from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Generated, RunEvent, RunFinished, RunPrepared
from tests.ckv_core.worker.scripted_runner import (
    STEP_S,
    ScriptedRunner,
    _interrupt,
    _prompt_info,
)
from tests.factories.runs import bare


class StudyRunner(ScriptedRunner):
    """Every variant says `nine`; a question `kill`, `refuse` or `bug` does what it says."""

    def compare(
        self, request: CompareRequest, should_stop: Callable[[], bool]
    ) -> Iterator[RunEvent]:
        assert self.info is not None
        variants = tuple(bare(spec) for spec in request.variants)
        yield RunPrepared(self.info, _prompt_info(request), variants, {})
        time.sleep(STEP_S)
        _interrupt(request.question, 0)
        count = len(variants)
        yield Generated(("nine",) * count, ((1,),) * count, (("nine",),) * count, ("eos",) * count)
        yield RunFinished({})
