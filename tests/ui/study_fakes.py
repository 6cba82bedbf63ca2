"""A made-up study on needles: scores by rule, so that what the page says is known."""

from ckv_core.studies.records import FULL, Sample, SampleResult, Study
from ui.services.services import Services

LENGTHS, DEPTHS, PER_CELL = (1024, 2048), (0.05, 0.35, 0.65, 0.95), 5
STUDY = Study(
    name="needles <b>*two*</b>",
    data={"file": "samples.jsonl"},
    variants=("snapkv", "snapkv+critical:stage2=raw", "keydiff"),
    budgets=("10%", "50%"),
    max_new_tokens=16,
)
COUNT = len(LENGTHS) * len(DEPTHS) * PER_CELL


def samples(count: int = COUNT) -> list[Sample]:
    """Samples on a grid of lengths and depths, of two tasks."""
    return [
        Sample(
            id=f"s{at:03}",
            context=f"Filler. The code of house {at} is 7{at:03}. Filler.",
            question=f"What is the code of house {at}? <img src=x onerror=alert(1)>",
            answers=(f"7{at:03}",),
            tags={
                "task": ("single", "multi")[at % 2],
                "length": LENGTHS[at // (len(DEPTHS) * PER_CELL)],
                "depth": DEPTHS[at // PER_CELL % len(DEPTHS)],
            },
        )
        for at in range(count)
    ]


def result(sample: str, number: int, variant: str, budget: str | None) -> SampleResult:
    """The full cache and SnapKV at 50 % answer all; others lose every so many."""
    misses = {("snapkv", "10%"): 3, ("keydiff", "10%"): 2, ("keydiff", "50%"): 4}
    often = misses.get((variant, budget or ""), 5 if "critical" in variant else 0)
    if number == 7 and variant == "keydiff":
        reason = "The budget of 10 holds not what is always kept."
        return SampleResult(
            sample=sample, variant=variant, budget=budget, state="failed", reason=reason
        )
    share = 1.0 if budget is None else float(budget.rstrip("%")) / 100
    return SampleResult(
        sample=sample,
        variant=variant,
        budget=budget,
        state="done",
        score=0.0 if often and number % often == 0 else 1.0,
        text="7",
        stopped="eos",
        prompt_tokens=1000,
        cache_bytes=int(10_000 * share),
        full_cache_bytes=10_000,
        head_l1=None if variant == FULL else (2 if "critical" in variant else 3) / share,
    )


def results(of: list[Sample]) -> list[SampleResult]:
    """Of every sample at every point."""
    return [
        result(sample.id, number, point.variant, point.budget)
        for number, sample in enumerate(of)
        for point in STUDY.points()
    ]


def store_study(services: Services, study: Study = STUDY, done: int = COUNT) -> str:
    """Save it with the results of some samples, as if the worker had run them; its slug."""
    store, found = services.studies._store, samples()
    slug = store.save(study, found)
    for sample in found[:done]:
        store.commit(slug, [each for each in results(found) if each.sample == sample.id])
    return slug
