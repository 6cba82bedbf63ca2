"""Our components: each a gr.HTML with a static template, which a module fills as text."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from ui.components.modules import ROOT, on_load
from ui.looks.glossary import with_terms

# Fills the template's only element; the value never passes through a template, because
# Gradio evaluates templates and model output is untrusted.
_TEMPLATE = '<div class="ckv" data-component="{name}"></div>'


@dataclass(frozen=True, slots=True)
class Scripted:
    """A component whose content a module draws out of a small dict.

    A subclass of gr.HTML would make Gradio write a .pyi file beside its source.

    Attributes:
        name: what the root element is called in `data-component`.
        module: path of the module in the repository; its default export is called with {root,
            element, props, trigger, watch}, and what it triggers are the component's events.
    """

    name: str
    module: str

    def __call__(
        self,
        value: dict[str, Any] | list[str] | None = None,
        *,
        section: str = "",
        elem_classes: Sequence[str] = (),
        **kwargs: Any,
    ) -> gr.HTML:
        """Lay out an empty component; call inside a Blocks context.

        `section` is `### Heading` and a line above it: apart it would be mounted each time too.
        """
        return gr.HTML(
            value,
            elem_classes=["ckv-host", *elem_classes],
            html_template=section_html(section) + _TEMPLATE.format(name=self.name),
            js_on_load=on_load(self.module),
            apply_default_css=False,
            **kwargs,
        )


def component(beside: str, script: str, *, part: str = "") -> Scripted:
    """The component of a module beside a Python file.

    Args:
        beside: that file.
        script: path of the module from there, without its ending; its name, with dashes, is that
            of the component too.
        part: name of the component where it looks like another one.
    """
    path = (Path(beside).parent / f"{script}.js").relative_to(ROOT)
    return Scripted(part or path.stem.replace("_", "-"), path.as_posix())


def section_html(text: str) -> str:
    """Our own words above a section: `### Heading`, then a line of text; empty for none."""
    if not text:
        return ""
    heading, _, words = map(html.escape, text.removeprefix("### ").partition("\n"))
    words = with_terms(words)
    head = f"<h3>{heading}</h3>" if heading.strip() else ""
    return f'<div class="section prose">{head}<p>{words}</p></div>'


def words_of(section: str) -> str:
    """The words of a section whose heading stands on the line that opens it."""
    return f"### \n{section.partition(chr(10))[2]}"


ContextBar = component(__file__, "text_files/context_bar")
"""The foot of #context: opens a file into it, offers "examples" and shows the token count.

The value is {"text", "tone", "field", "count", "first_tokens", "first_chars"}: a sentence, at the
field where it names one, the count in short, and how much of a text that is too long would fit.
Triggers `count` once typing rests, and `example` with {at}.
"""

SetupLink = component(__file__, "text_files/setup_link")
"""A button that triggers `ask`, and copies the link of {"setup"} when it comes."""

ExampleCard = component(__file__, "example_card/example_card")
"""Shows the app's own example run, which `/example` answers; nothing where there is none."""

StudyFile = component(__file__, "text_files/study_file")
"""Reads a file of samples in the browser into #study-data."""

SampleMap = component(__file__, "text_files/sample_map")
"""Shows {"text", "unread", "theirs", "rows"}: which of a file's columns is read as which of ours.

A row is {"own", "help", "from", "values"}: our column, the file's or empty, and the first samples.
A choice goes to #study-columns as `ours=theirs`.
"""

MethodChips = component(__file__, "method_chips/method_chips")
"""The chosen methods as chips with a menu each; the value is a list of SPECs.

It offers what `chips_offer` (ui/compare/offers.py) gives, as JSON. Triggers `input` when the reader
changes it, and `ablate` with {spec}, the base whose ablation is wanted.
"""

Slide = component(__file__, "slide/slide")
"""A slider beside a text field, whose text is its value {"text"}.

`ruler` is {"field", "label", "least", "most", "step", "unit", "ticks", "hint"}, the field by the id
of its block.
"""

Notice = component(__file__, "notice/notice")
"""Shows {"text", "tone", "links"}: one sentence; nothing while the text is empty."""

RunNotice = component(__file__, "notice/run_notice", part="notice")
"""Shows beside Run what Run refuses, and lets keys run."""

ModelLine = component(__file__, "notice/model_line", part="notice")
"""Shows what the worker does with a model: a Notice with {"loading", "fraction"}.

Triggers `stop` with {name} while `loading` names a model; `fraction` is None where it is not
known how much there is.
"""

RunHead = component(__file__, "run_head/run_head")
"""Shows {"title", "crumbs", "answer"}: what a run is, and the expected answer.

With {"guest": true} the page hides what guests cannot use.
"""

VerdictStrip = component(__file__, "verdict/verdict")
"""Shows {"headline", "causes", "findings", "cautions", "regimes"}, and of a run that is not over
{"state", "sentence", "left_s", "steps"}; nothing where there is no sentence.

The first cause, or finding, and the first caution stand below the headline, the others on demand.
While there is a `sentence` it stands in the headline's place, with `left_s` seconds to go; `steps`
is a list of {"label", "share", "fraction", "is_now"}, which make one bar.
"""

RunActions = component(__file__, "run_actions/run_actions")
"""Shows what can be done with a run: {"slug", "files", "forced", "follow_ups", "report", "samples",
"code", "cancel", "resume"}. Triggers `cancel` and `resume`.

`files` holds once there are tables to export, `forced` and `follow_ups` where it has such data,
`report` once the run is over, `samples` where it has many. /data/SLUG/code, of many samples
/studies/SLUG/code, answers a list of {"label", "text", "note"}.
"""

RunTabs = component(__file__, "run_tabs/run_tabs")
"""On a phone tabs over the classes ckv-tab-answers, ckv-tab-kept, ckv-tab-more; none for None."""

Fold = component(__file__, "fold/fold")
"""Opens and closes what follows it in its `fold_column`: {"title", "hint"}; None hides all.

Triggers `expand` when it is opened.
"""


def fold_column() -> gr.Column:
    """The column of a `Fold`, which is its first component."""
    return gr.Column(elem_classes=["ckv-fold", "ckv-tab-more"])


DataTable = component(__file__, "data_table/data_table")
"""Shows {"caption", "head", "columns", "rows", "note", "file", "empty"}: sorted, and saved as CSV.

`empty` is shown while there is no row.
`head` is a sentence above the rows, or empty; its rows have a "regime" that marks them.
`columns` is a list of {"key", "label", "unit", "align"} with "help" behind a question mark, "extra"
where it is shown on demand, and "hidden" where it is in the file only.
`rows` is a list of {"look", "cells"}; `look` is that of the variant or line that the row belongs
to, or null. `cells` is {key: {"text", "value", "href", "title", "tone", "spec", "pieces"}}: `text`
is read, `value` sorted by and saved, `href` leads to a page of ours, `tone` is "", "warn" or
"good", `spec` stands below a row's name, and `pieces` are (text, whether it differs) in its place.
`file` names the CSV file, which has all columns. Of `first` rows more are shown on demand; with
`lines` a row is a few lines on a phone. A cell's `outcome` is drawn as a pill, or with a `word` as
a sign, `more` stands behind its text, and `strip` is an interval. A column may have a "look".
With `opens` the link of a row triggers `open` with its query.
"""

Facts = component(__file__, "facts/facts")
"""Shows {"rows": [{"label", "text"}]}."""

Answers = component(__file__, "answers/answers")
"""Shows {"columns", "rows", "head", "note", "live"}: a friendly line while the value is None.

`columns` is a list of {"key", "label", "unit", "help"} of name, text, outcome, memory, agreement.
`rows` is a list of {"index", "look", "name", "spec", "regime", "reference", "kept", "state",
"pieces", "short", "stop", "outcome", "outcome_word", "outcome_title", "mib", "share",
"agreement"}: `state` is waiting, answering or done; `pieces` are (text, "" | "diff" | "answer"),
`short` the part to show of a long text; what is not known yet is None. A row with `kept` can be
chosen, which writes #variant=INDEX (assets/scripts/choice.js). `live` are the sliders of a stored
result (ui/results/next_steps.py), None or missing for none; what they would give comes from
`/data/SLUG/preview` (ui/run/routes.py).
"""

FollowUpAnswers = component(__file__, "answers/follow_ups")
"""Shows {"questions"}, each {"question", "columns", "rows"} as above; hidden without any."""

KeptTokens = component(__file__, "kept_tokens/kept_tokens")
"""Fetches and shows the retained sets of a run; a friendly line while the value is None.

The value is {"slug", "base", "layers", "kv_heads", "positions", "evictable", "variants",
"context", "answer", "key"}. `variants` is a list of {"index", "look", "label", "spec", "method",
"critical"} of the variants that have a retained set, each optionally with "window", "sinks" and
"protected", a list of [first, end] (what is always kept); "answer" is the expected answer to look
for. Where they have a "group", such as a budget, those of one group are fetched and shown at a
time: that of the chosen variant. With "one", the index of a variant, only one is shown: the chosen
one, else this. A changed `key` fetches again. Those that evict while generating have "entries",
held at the choice of each token, and `BASE/SLUG/INDEX/evicted` answers the rows of
`HeldSeries.evicted`.
`BASE/SLUG/prompt` answers JSON {"pieces", "compressed", "tokens", "context"},
`BASE/SLUG/INDEX/retained` the bytes of `RetainedSet.bits`.

The choice lives in location.hash (#variant=2&span=100-140&layer=4), so a copied address shows the
same spot. The component writes it there and fires `hashchange`, and follows where others do.
"""

OutcomeGrid = component(__file__, "grid/grid")
"""Shows methods by budgets: {"columns", "full", "lines", "least", "note", "chosen"}.

`columns` is a list of {"label", "size"}; `full` the full cache's {"name", "look", "outcome",
"shown", "label", "size"} or None; `lines` of {"name", "look", "spec", "regime", "cells", "least",
"never"}, `least` one of the columns or None, `cells` of {"index", "state", "shown", "at", "words",
"least"} or None, one a column, `state` "kept", "lost", "cut" or "". The chosen cell is that of
the address (#variant=INDEX), else `chosen`; "least" beside them is the last column's head.
"""

ChosenCell = component(__file__, "grid/chosen_cell")
"""Shows one of {"cells", "chosen", "opens"}: that of the address (#variant=INDEX), else `chosen`.

A cell is {"index", "name", "look", "at", "outcome", "outcome_words", "cost", "pieces", "full"},
both texts lists of (text, kind), those with a kind underlined; "short" and "short_full" are the
same around the difference, where a text is long. With `opens` a button triggers `open` with
{index}.
"""

NextSteps = component(__file__, "grid/next_steps")
"""Shows {"find", "links", "refused", "started"}; hidden for None.

`find` says what the button takes that triggers `find`, empty for no button; `links` is a list of
{"text", "href", "title"}; `refused` says why nothing was started; `started` is the slug of the run
that was, which the page opens.
"""

RunCharts = component(__file__, "run_charts/run_charts")
"""Shows {"slug", "base", "key", "text", "head", "charts"}; hidden for None.

`head` is a sentence above the charts, or empty. `charts` is a list of {"name", "title", "csv",
"controls"}, `controls` of {"name", "label", "options"}, `options` of (value, label).
`BASE/SLUG/figure/NAME?CONTROL=VALUE` answers a Plotly figure, `BASE/SLUG/CSV.csv` its data; an
empty CSV has no link. A changed `key` draws the charts again. Each has one menu: PNG, SVG, CSV, and
the chart as a table.
Without `charts`, `text` says why.
"""

RunList = component(__file__, "run_list/run_list")
"""Shows a view of the Runs page; triggers `act` with {action, slugs, query, ...}."""
