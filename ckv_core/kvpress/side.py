"""Runs presses and tells what each one keeps; kvpress's own Python executes this file by path.

Only its standard library is imported at the top, so that our own Python can read it too.

stdin, one JSON document: {"model": folder, "module": a file with more presses or null,
"texts": [[token, ...], ...], "jobs": [job, ...]}, a job
{"text": index, "removed": share, "press": [[class, {argument: value}], ...] from the outermost in}.
stdout, a JSON line each: {"version"} or {"error"}, then per job {"kept": [base64, ...]}, bits of
[kv_heads, tokens] per layer, or {"error": sentence}.
"""

import base64
import importlib.util
import inspect
import json
import os
import sys
from contextlib import ExitStack, nullcontext
from importlib.metadata import version
from typing import Any

EAGER = "ObservedAttentionPress"  # reads the attention that only this implementation hands out
Answer = dict[str, Any]


class UnfitPressError(Exception):
    """A press that cannot be built or run; the message is a sentence."""


def main() -> None:
    """Answer one document; whatever libraries print goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def say(answer: Answer) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        try:
            import kvpress  # noqa: F401 - here to be missed
        except ImportError as error:
            say({"error": f"kvpress cannot be imported there ({error})."})
            return
        document = json.loads(sys.stdin.read())
        try:
            own = _module(document["module"])
        except Exception as error:  # the user's own code
            say({"error": f"{document['module']!r} cannot be imported ({_first(error)})."})
            return
        say({"version": version("kvpress")})
        runner = Runner(document["model"], own)
        for text, tokens in enumerate(document["texts"]):
            jobs = [job for job in document["jobs"] if job["text"] == text]
            for answer in runner.answers(tokens, jobs):
                say(answer)


class Runner:
    """A model on the CPU in float32, and presses at work on it, as after `torch.manual_seed(0)`."""

    def __init__(self, folder: str, own: Any = None) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch, self._own = torch, own
        self._seeded = torch.Generator().manual_seed(0).get_state()
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model = model.eval()
        inner = getattr(self._model.model, "language_model", self._model.model)
        self._attentions = [layer.self_attn for layer in inner.layers]
        for attention in self._attentions:
            attention.rotary_emb = inner.rotary_emb

    def answers(self, tokens: list[int], jobs: list[Answer]) -> list[Answer]:
        """Tell what each press keeps of one text, in order.

        Presses that look at one layer after the other share a pass; others have one of their own.
        """
        from kvpress import BasePress

        answers: list[Answer] = [{"kept": []} for _ in jobs]
        shared: dict[str, dict[int, Any]] = {"sdpa": {}, "eager": {}}
        for place, job in enumerate(jobs):
            try:
                press = _built(job["press"], job["removed"], self._own)
            except UnfitPressError as error:
                answers[place] = {"error": str(error)}
                continue
            how = "eager" if EAGER in [name for name, _ in job["press"]] else "sdpa"
            own = type(press).__call__, type(press).forward_hook
            if own == (BasePress.__call__, BasePress.forward_hook):
                press.post_init_from_model(self._model)
                shared[how][place] = press
            else:
                answers[place] = self._alone(tokens, press, how)
        for how, presses in shared.items():
            if presses:
                self._together(tokens, presses, how, answers)
        return answers

    def _together(
        self, tokens: list[int], presses: dict[int, Any], how: str, answers: list[Answer]
    ) -> None:
        numbers = dict.fromkeys(presses, self._seeded)  # each press draws as if it were alone

        def hook(module: Any, _inputs: Any, kwargs: Any, output: Any) -> None:
            states = kwargs["past_key_values"].layers[module.layer_idx]
            for place, press in presses.items():
                if "error" in answers[place]:
                    continue
                module.masked_key_indices = None
                given = (states.keys.clone(), states.values.clone(), output[1], kwargs)
                self._torch.set_rng_state(numbers[place])
                try:
                    kept = press.compress(module, kwargs["hidden_states"], *given)
                    mask = self._mask(module, kept[0], states.keys)
                    answers[place]["kept"].append(_packed(mask))
                except Exception as error:  # another project's code; the other presses go on
                    answers[place] = {"error": _sentence(error)}
                numbers[place] = self._torch.get_rng_state()
            module.masked_key_indices = None

        with ExitStack() as hooks:
            for each in self._attentions:
                hooks.enter_context(each.register_forward_hook(hook, with_kwargs=True))
            self._read(tokens, how)

    def _alone(self, tokens: list[int], press: Any, how: str) -> Answer:
        try:
            whole = self._read(tokens, how)
            self._torch.set_rng_state(self._seeded)
            cache = self._read(tokens, how, press)
            layers = zip(self._attentions, cache.layers, whole.layers, strict=True)
            masks = [self._mask(each, kept.keys, all_.keys) for each, kept, all_ in layers]
            return {"kept": [_packed(mask) for mask in masks]}
        except Exception as error:  # another project's code; the other presses go on
            return {"error": _sentence(error)}

    def _read(self, tokens: list[int], how: str, press: Any = None) -> Any:
        from transformers import DynamicCache

        self._model.set_attn_implementation(how)
        for attention in self._attentions:
            attention.masked_key_indices = None
        cache = DynamicCache()
        ids = self._torch.tensor([tokens])
        with self._torch.inference_mode(), press(self._model) if press else nullcontext():
            self._model.model(input_ids=ids, past_key_values=cache)
        return cache

    def _mask(self, attention: Any, kept: Any, everything: Any) -> Any:
        """[kv_heads, tokens] bool; rotated keys differ everywhere, so a key tells its position."""
        heads, tokens = everything.shape[1:3]
        hidden = attention.masked_key_indices
        if hidden is not None:  # AdaKV names the entries that it hides, and drops none
            mask = self._torch.ones(heads, tokens, dtype=self._torch.bool)
            mask[hidden[1], hidden[2]] = False
            return mask.numpy()
        mask = self._torch.zeros(heads, tokens, dtype=self._torch.bool)
        for head in range(heads):
            places = {key.tobytes(): at for at, key in enumerate(everything[0, head].numpy())}
            found = [places.get(key.tobytes()) for key in kept[0, head].numpy()]
            if None in found:
                raise UnfitPressError("It changes keys, so their positions are unknown.")
            mask[head, found] = True
        return mask.numpy()


def _module(path: str | None) -> Any:
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("own_presses", path)
    if spec is None or spec.loader is None:
        raise ImportError("a file of Python code is expected")
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_presses"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def _built(chain: list[tuple[str, dict[str, Any]]], removed: float, own: Any = None) -> Any:
    import kvpress

    (name, arguments), *inner = chain
    made = getattr(own, name, None) or getattr(kvpress, name, None)
    if not (isinstance(made, type) and issubclass(made, kvpress.BasePress)):
        where = "neither kvpress nor the module has a" if own else "kvpress has no"
        raise UnfitPressError(f"{where} press {name!r}.")
    given = {"press": _built(inner, removed, own)} if inner else {"compression_ratio": removed}
    if not inner and "compression_ratio" not in inspect.signature(made).parameters:
        given = {}  # it decides by itself how much it keeps
    try:
        return made(**given, **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise UnfitPressError(f"{name} does not take this ({error}).") from None


def _packed(mask: Any) -> str:
    import numpy

    return base64.b64encode(numpy.packbits(mask).tobytes()).decode()


def _sentence(error: Exception) -> str:
    if isinstance(error, UnfitPressError):
        return str(error)
    return f"The press failed ({_first(error)})."


def _first(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line}"


if __name__ == "__main__":
    main()
