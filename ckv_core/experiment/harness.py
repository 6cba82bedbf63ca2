"""Tasks of lm-evaluation-harness: its documents, prompts and scores. Imports lm_eval on use.

No code of the Hub is run: `datasets` has no loading scripts since version 4, and metrics that
`evaluate` would fetch are refused. Only names that lm_eval registers are loaded, never a file.
"""

import functools
import importlib.util
import logging
import math
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from ckv_core.base.home import home_folder
from ckv_core.errors import CkvError, ConfigError, first_line
from ckv_core.experiment.study import MAX_ANSWER_CHARS, MAX_ANSWERS, Sample
from ckv_core.records.run_request import RunRequest, check_context

LM_EVAL = "lm_eval"  # metric of samples that the harness scores
FEWSHOT_SEED = 1234  # the harness's own default
CONTEXT = "context"  # the document's field that is the context, unless the study names another
_SEPARATOR = "\n\n"  # between context and question in every prompt of ours


def has_harness() -> bool:
    return importlib.util.find_spec(LM_EVAL) is not None


def harness_samples(study: RunRequest) -> tuple[Sample, ...]:
    r"""The first samples of a task, with the prompts that lm_eval makes of them.

    Where the prompt has the document's context once and then a blank line, that is where context
    and question part; the prompt as a whole is the same.

    Raises:
        ConfigError: no such task, one that cannot be a study, or in context-only one that has no
            such place.
    """
    data = study.data
    task = _load(data[LM_EVAL])
    task.set_fewshot_seed(FEWSHOT_SEED)
    measure = _measure(task, data.get("metric", ""))
    tags = {"task": data[LM_EVAL], "measure": measure, LM_EVAL: version(LM_EVAL)}
    samples = []
    for number, document in task.doc_iterator(limit=data["samples"]):
        prompt = task.fewshot_context(
            document,
            num_fewshot=task.config.num_fewshot or 0,
            gen_prefix=task.doc_to_prefix(document),
        )
        field = data.get("context", CONTEXT)
        context, question = _parted(prompt, document.get(field))
        if study.scenario == "context-only" and not question:
            raise ConfigError(
                f"The prompts of {data[LM_EVAL]!r} do not show the field {field!r} once before a "
                "blank line, so the context has no end. Name another field as data.context, or "
                "take the scenario regular."
            )
        check_context(context)
        samples.append(
            Sample(
                id=f"{data[LM_EVAL]}-{number + 1:05}",
                context=context,
                question=question,
                answers=_answers(task.doc_to_target(document)),
                metric=LM_EVAL,
                tags={**tags, "document": number},
            )
        )
    harness_score("", samples[0])  # a task that gives no share is refused before anything runs
    return tuple(samples)


def harness_score(text: str, sample: Sample) -> float:
    """What lm_eval's filter and `process_results` give a text, cut at the task's stop strings.

    Raises:
        CkvError: they fail, or give no number from 0 to 1.
    """
    name, measure = (str(sample.tags.get(tag, "")) for tag in ("task", "measure"))
    task = _loaded(name)
    metric, _, chosen = measure.partition(",")
    from lm_eval.api.instance import Instance

    try:
        document = task.task_docs[int(sample.tags["document"])]
        instance = Instance("generate_until", document, ("",), 0, resps=[_cut(text, task)])
        next(each for each in task._filters if each.name == chosen).apply([instance])
        found = task.process_results(document, [instance.filtered_resps[chosen]])
        score = float(found[metric])
    except Exception as error:  # a task is a program of others, and may raise at will
        raise CkvError(
            f"lm_eval's task {name!r} does not score a text by {metric!r} "
            f"({type(error).__name__}: {first_line(error)})."
        ) from None
    if not (math.isfinite(score) and 0 <= score <= 1):
        raise CkvError(
            f"lm_eval's {metric!r} of {name!r} is {score:g}, and a study needs a score from 0 to "
            "1; name another one of its metrics as data.metric."
        )
    return score


# --- tasks --------------------------------------------------------------------------------


@functools.cache
def _index() -> Any:
    """All tasks that lm_eval knows, and those of the folder that the operator names.

    Raises:
        ConfigError: it is not installed, or with a `datasets` that runs code of the Hub.
    """
    if not has_harness():
        raise ConfigError(
            "Tasks of lm-evaluation-harness need its package: "
            "pip install -r requirements-lm-eval.txt"
        )
    os.environ["HF_EVALUATE_OFFLINE"] = "1"  # its metrics are scripts of the Hub
    import datasets
    from lm_eval.tasks import TaskManager

    if int(datasets.__version__.partition(".")[0]) < 4:
        raise ConfigError(
            f"datasets {datasets.__version__} can run code of the Hub; install the version that "
            "requirements-lm-eval.txt pins."
        )
    logging.getLogger(LM_EVAL).setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    own = home_folder() / "lm_eval_tasks"
    return TaskManager(include_path=str(own) if own.is_dir() else None)


def _load(name: str) -> Any:
    """A task with its documents.

    Raises:
        ConfigError: there is none of that name, it cannot be loaded, or not be run here.
    """
    index = _index()
    if name not in index.all_subtasks:
        what = "is a group of tasks; name one of them" if name in index.all_tasks else "is unknown"
        raise ConfigError(f"lm_eval's task {name!r} {what}. `lm_eval ls tasks` lists all.")
    if reason := _refused(index.task_index[name].cfg):
        raise ConfigError(f"lm_eval's task {name!r} {reason}")
    try:
        return index.load(name)["tasks"][name]
    except Exception as error:  # no network, no data set, a task's own program
        raise ConfigError(
            f"lm_eval cannot load the task {name!r} ({type(error).__name__}: {first_line(error)})."
        ) from None


_loaded = functools.lru_cache(maxsize=4)(_load)


def _refused(config: Mapping[str, Any]) -> str:
    """Why a task cannot be a study; empty where it can. Reads the file, runs nothing."""
    kind = config.get("output_type", "generate_until")
    generation = config.get("generation_kwargs") or {}
    if "class" in config:
        return "is a Python class of its own, and only tasks of a YAML file are run."
    if kind != "generate_until":
        return f"is of the type {kind}, which writes no answer; take one of type generate_until."
    if config.get("unsafe_code"):
        return "runs the code that a model writes, which is not done here."
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        return "shows pictures or sounds, which no model here takes."
    if config.get("repeats", 1) > 1 or generation.get("do_sample"):
        return "draws answers by chance; a study writes one, greedily."
    return ""


def _measure(task: Any, wanted: str) -> str:
    """`METRIC,FILTER` as in lm_eval's own results; the first of each where none is named."""
    metrics = [name for name, higher in task.higher_is_better().items() if higher]
    known = [f"{metric},{each.name}" for metric in metrics for each in task._filters]
    found = [name for name in known if wanted in ("", name, name.partition(",")[0])]
    if not found:
        raise ConfigError(
            f"data.metric {wanted!r} is no score of the task that rises with better answers; "
            f"it has {', '.join(known) or 'none'}."
        )
    return found[0]


# --- documents ----------------------------------------------------------------------------


def _parted(prompt: str, passage: object) -> tuple[str, str]:
    """Context and question, which joined by a blank line are the prompt; else all is context."""
    if isinstance(passage, str) and passage.strip() and prompt.count(passage) == 1:
        end = prompt.index(passage) + len(passage)
        question = prompt[end:].removeprefix(_SEPARATOR)
        if prompt.startswith(_SEPARATOR, end) and question.strip():
            return prompt[:end], question
    return prompt, ""


def _answers(target: object) -> tuple[str, ...]:
    found = target if isinstance(target, list) else [target]
    return tuple(str(each)[:MAX_ANSWER_CHARS] for each in found[:MAX_ANSWERS]) or ("",)


def _cut(text: str, task: Any) -> str:
    until = (task.config.generation_kwargs or {}).get("until") or []
    for stop in [until] if isinstance(until, str) else until:
        text = text.partition(stop)[0] if stop else text
    return text
