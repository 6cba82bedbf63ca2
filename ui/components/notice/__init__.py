"""One sentence to the reader, and lines that say a little more."""

from ui.components.base import component

Notice = component(__file__, "notice")
"""Shows {"text", "tone", "links"}: one sentence; nothing while the text is empty."""

RunNotice = component(__file__, "run_notice", part="notice")
"""The line beside Run: what Run refuses; and the keys that run."""

ModelLine = component(__file__, "model_line", part="notice")
"""What the worker does with a model: a Notice with {"loading", "fraction"}.

Triggers `stop` with {name} while `loading` names a model; `fraction` is None where it is not
known how much there is.
"""
