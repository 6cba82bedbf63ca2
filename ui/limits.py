"""What one app takes at most; the environment may lower most of it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ckv_core.errors import CkvError, ConfigError, PromptError
from ckv_core.request.compare_request import (
    MAX_NEW_TOKENS,
    MAX_SWEEP_POINTS,
    MAX_TEXT_CHARS,
    MAX_VARIANTS,
    CompareRequest,
)


class LimitError(CkvError):
    """More was asked than the app's settings allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Each is read from CKV_MAX_ and its name in capitals.

    Attributes:
        queue: unfinished runs at a time, of everybody.
        queue_per_user: unfinished runs of one user; only with logins.
        runs: saved runs; of one user where there are logins, else of the app.
        body_mib: size of a request with a context or a file, in MiB; others take 1 MiB.
        context_chars: characters of the context, and of each other text.
        prompt_tokens: tokens of the whole prompt; None for as many as the model takes.
        variants: variants of a run.
        sweep_points: variants of a sweep.
        new_tokens: generated tokens per variant.
        run_minutes: of a run, from when it starts, not while it waits; None for no limit.
    """

    queue: int = 32
    queue_per_user: int = 8
    runs: int = 100_000
    # 4 million characters of JSON-escaped text need 24 MB at most.
    body_mib: int = 32
    context_chars: int = MAX_TEXT_CHARS
    prompt_tokens: int | None = None
    variants: int = MAX_VARIANTS
    sweep_points: int = MAX_SWEEP_POINTS
    new_tokens: int = MAX_NEW_TOKENS
    run_minutes: int | None = None

    @classmethod
    def from_environ(cls, given: Mapping[str, str]) -> "Limits":
        names = [field.name for field in fields(cls)]
        return cls(
            **{name: _number(name, given[_key(name)]) for name in names if _key(name) in given}
        )

    @property
    def body_bytes(self) -> int:
        """Size of a request with a context or a file."""
        return self.body_mib * 2**20

    @property
    def run_seconds(self) -> float | None:
        return None if self.run_minutes is None else 60.0 * self.run_minutes

    def check(self, request: CompareRequest) -> None:
        """PromptError for a text that is too long; LimitError for too many variants or tokens."""
        more = (*request.follow_ups, *request.protect)
        texts = (request.context, request.question, request.answer, *more)
        longest = max(len(text) for text in texts)
        if longest > self.context_chars:
            raise PromptError(
                f"A text has {longest:,} characters; this app takes {self.context_chars:,}. "
                "Shorten it."
            )
        is_sweep = request.kind == "sweep"
        most = self.sweep_points if is_sweep else self.variants
        count = len(request.variants) + len(request.own_indices)
        if count > most:
            raise LimitError(
                f"{count} variants are too many; this app takes {most} in one "
                f"{'sweep' if is_sweep else 'run'}."
            )
        if request.max_new_tokens > self.new_tokens:
            raise LimitError(
                f"{request.max_new_tokens} new tokens are too many; this app generates up to "
                f"{self.new_tokens} per variant."
            )

    def check_prompt(self, tokens: int) -> None:
        """PromptError for a prompt that is too long for this app, whatever its model takes."""
        if self.prompt_tokens is not None and tokens > self.prompt_tokens:
            raise PromptError(
                f"The prompt has {tokens:,} tokens; this app takes {self.prompt_tokens:,}. "
                "Shorten the context."
            )

    def check_queue(self, waiting: int, own: int | None) -> None:
        """LimitError for one more unfinished run than fits; `own` is None without logins."""
        if waiting >= self.queue:
            raise LimitError(
                f"The queue is full ({self.queue} runs); wait for one to end or cancel one."
            )
        if own is not None and own >= self.queue_per_user:
            raise LimitError(
                f"You have {own} unfinished runs, which is this app's limit for one user; wait "
                "for one to end or cancel one."
            )

    def check_saved(self, saved: int) -> None:
        """LimitError for one more run than may be saved."""
        if saved >= self.runs:
            raise LimitError(
                f"{saved:,} runs are saved, which is this app's limit; delete some first."
            )

    def rows(self, *, with_logins: bool) -> list[tuple[str, str]]:
        rows = [("Unfinished runs at a time", f"{self.queue:,}")]
        if with_logins:
            rows.append(("Unfinished runs of one user", f"{self.queue_per_user:,}"))
        tokens, minutes = self.prompt_tokens, self.run_minutes
        whose = "Saved runs of one user" if with_logins else "Saved runs"
        return [
            *rows,
            (whose, f"{self.runs:,}"),
            ("Characters of a context", f"{self.context_chars:,}"),
            ("Tokens of a prompt", "as the model takes" if tokens is None else f"{tokens:,}"),
            ("Variants of a run", f"{self.variants:,}"),
            ("Variants of a sweep", f"{self.sweep_points:,}"),
            ("New tokens per variant", f"{self.new_tokens:,}"),
            ("Minutes of a run", "no limit" if minutes is None else f"{minutes:,}"),
            ("Size of a request with a context or a file", f"{self.body_mib:,} MiB"),
        ]


# The engine's own limits cannot be raised.
_HIGHEST = {
    "queue": 10_000,
    "queue_per_user": 10_000,
    "runs": 10_000_000,
    "body_mib": 1024,
    "context_chars": MAX_TEXT_CHARS,
    "prompt_tokens": 100_000_000,
    "variants": MAX_VARIANTS,
    "sweep_points": MAX_SWEEP_POINTS,
    "new_tokens": MAX_NEW_TOKENS,
    "run_minutes": 100_000,
}


def _key(name: str) -> str:
    return f"CKV_MAX_{name.upper()}"


def _number(name: str, text: str) -> int:
    highest = _HIGHEST[name]
    # The length stops int() from reading a huge text.
    valid = text.isascii() and text.isdigit() and len(text) < 12
    if not (valid and 1 <= int(text) <= highest):
        raise ConfigError(f"{_key(name)} must be a whole number from 1 to {highest:,}.")
    return int(text)
