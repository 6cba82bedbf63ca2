"""Small components and settings of events that only the pages use."""

from collections.abc import Sequence
from typing import Any, Literal

import gradio as gr

from ui.components.base import ScriptedHtml

Tone = Literal["", "good", "warn", "error"]
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# A handler that only waits must never make another wait.
SHARED: dict[str, Any] = {**PRIVATE, "concurrency_limit": None}
AT_ONCE: dict[str, Any] = {**PRIVATE, "queue": False}


class Notice(ScriptedHtml):
    """Shows {"text", "tone", "links"}: one sentence; nothing while the text is empty."""

    NAME = "notice"
    SCRIPTS: tuple[str, ...] = ("notice.js",)


class RunNotice(Notice):
    """The line beside Run: what Run refuses; and the keys that run."""

    SCRIPTS = ("notice.js", "run_key.js")


class ContextBar(ScriptedHtml):
    """Opens a text file into #context and shows the token count {"text", "tone"}.

    The file is read in the browser, so no upload exists. Triggers `count` once typing rests.
    """

    NAME = "context-bar"
    SCRIPTS = ("text_file.js", "context_bar.js")


class ModelLine(Notice):
    """What the worker does with a model: a Notice with {"loading", "fraction"}.

    Triggers `stop` with {name} while `loading` names a model; `fraction` is None where it is not
    known how much there is.
    """

    SCRIPTS = ("notice.js", "model_line.js")


class ModelList(ScriptedHtml):
    """Shows what `ui.compare.offers.models_value` gives; triggers `pick` with {name}."""

    NAME = "model-list"
    SCRIPTS = ("model_list.js",)


class OwnBar(ScriptedHtml):
    """Reads files of kept positions in the browser into #own."""

    NAME = "own-bar"
    SCRIPTS = ("text_file.js", "own_bar.js")


class StudyFile(ScriptedHtml):
    """Reads a file of samples in the browser into #study-data."""

    NAME = "study-file"
    SCRIPTS = ("text_file.js", "study_file.js")


class VariantPicker(ScriptedHtml):
    """Chooses among what `picker_offer` (ui/compare/offers.py) gives; the value is a list of SPECs.

    Triggers `input` when the reader changes it.
    """

    NAME = "variant-picker"
    SCRIPTS = ("variant_picker.js",)

    def api_info(self) -> dict[str, Any]:
        """Schema of the value: SPECs."""
        return {"type": "array", "items": {"type": "string"}}


class RunLinks(ScriptedHtml):
    """Shows the links of a run.

    The value is {"slug", "kind", "files", "forced", "follow_ups", "report", "pairs"}: `files` once
    there are tables to export, `forced` and `follow_ups` where it has such data, `report` once the
    run is over; `pairs` are those for LLM Comparator, each {"a", "b", "text"} with the variants'
    indices.
    """

    NAME = "run-links"
    SCRIPTS = ("run_links.js",)


class SectionLinks(ScriptedHtml):
    """Links to the headed sections of the `ckv-results` around it; has no value."""

    NAME = "section-links"
    SCRIPTS = ("sections.js", "section_links.js")


class Facts(ScriptedHtml):
    """Shows {"rows": [{"label", "text"}]}."""

    NAME = "facts"
    SCRIPTS = ("facts.js",)


class RunList(ScriptedHtml):
    """Shows a view of the Runs page; triggers `act` with {action, slugs, query, ...}."""

    NAME = "run-list"
    SCRIPTS = ("run_filters.js", "run_files.js", "run_list.js")


class RunDifferences(ScriptedHtml):
    """Shows what `ui.compare_runs.differences.differences_value` gives; nothing for None."""

    NAME = "run-differences"
    SCRIPTS = ("run_differences.js",)


def said(text: str, tone: Tone = "", links: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Value of a Notice or a ContextBar.

    Args:
        text: one sentence.
        tone: how it is coloured.
        links: of a Notice, (words, address) of the pages of ours where the reader can go on.
    """
    return {"text": text, "tone": tone, "links": links} if links else {"text": text, "tone": tone}


SILENT = said("")
TO_RUNS = ("List of runs", "/runs")
TO_COMPARE = ("Compare page", "/")


def event_field(event: gr.EventData, name: str) -> Any:
    """One field of a client's event, which may be anything; None for none."""
    data = getattr(event, "_data", None)
    return data.get(name) if isinstance(data, dict) else None
