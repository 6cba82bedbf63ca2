"""How many requests fit, on the Methods page: a form whose answer is computed, never measured."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.experiment.plan import (
    FORMULAS,
    MAX_PLANNED,
    Setting,
    equal_bytes,
    equal_table,
    parse_bytes,
    plan,
    plan_table,
)
from ckv_core.experiment.sentences import budget_words
from ckv_core.methods import STORES
from ckv_core.models.catalog import KNOWN, list_models, planned_shape
from ckv_core.models.shape import MAX_CONFIG_BYTES, shape_of_text
from ckv_core.records.byte_budget import ITEM_BYTES
from ckv_core.records.run_request import FULL
from ckv_core.records.variants import VariantSpec
from ui.compare.form_values import FormValues
from ui.compare.offers import variant_choices
from ui.compare.setup_link import setup_of
from ui.components.base import DataTable, Facts, Notice
from ui.shell.parts import AT_ONCE, SILENT, dropdown, notice_value, number, refused, text

HEAD = """## How many requests fit
Computed from the sizes in a model's config; nothing is measured. Each number is explained below \
the tables. On the command line: `ckv plan`."""
FIRST = ("snapkv", "adakv", "kvzip", "streaming_llm:rolling=on")
CHOSEN = ("model", "prompt", "variants", "budget")  # what an address may fill in


class Capacity:
    """The form, its tables and its one handler."""

    def __init__(self) -> None:
        with gr.Column(elem_id="capacity"):
            gr.Markdown(HEAD, elem_classes=["section"])
            self._lay_out()
            self.notice = Notice(elem_id="capacity-notice")
            self.table = DataTable(elem_id="capacity-table")
            self.next = Notice(elem_id="equal-next")
            self.equal = DataTable(elem_id="equal-table")
            with gr.Accordion("What each number is", open=False, elem_id="formulas"):
                rows = [{"label": key, "text": words} for key, words in FORMULAS.items()]
                Facts({"rows": rows}, elem_id="capacity-formulas")

    def _lay_out(self) -> None:
        names = [*KNOWN, *(each.name for each in list_models() if each.name not in KNOWN)]
        methods = [(each.label, spec) for spec, each in variant_choices().items() if spec != FULL]
        self.inputs: dict[str, Any] = {}
        with gr.Row(equal_height=False, elem_classes=["ckv-card"]):
            info = "only its config is read"
            own: dict[str, Any] = {"scale": 2, "min_width": 260, "allow_custom_value": True}
            model = dropdown("plan-model", "Model", info, names, names[0], **own)
            memory = text("plan-memory", "Memory", "of the device: 80GiB", value="80GiB", **_SMALL)
            info = "such as 3.35TB/s"
            speed = text("plan-bandwidth", "Bandwidth", info, value="3.35TB/s", **_SMALL)
            info = "of weights and cache"
            dtype = dropdown("plan-dtype", "Data type", info, [*ITEM_BYTES], "bfloat16", **_SMALL)
            prompt = number("plan-prompt", "Prompt", "tokens", 131_072)
            output = number("plan-output", "Output", "tokens", 256)
        with gr.Row(equal_height=False, elem_classes=["ckv-card"]):
            info = "compared with the full cache; type your own, such as snapkv:window=16"
            variants = gr.Dropdown(
                methods,
                value=list(FIRST),
                label="Methods",
                info=info,
                elem_id="plan-variants",
                multiselect=True,
                max_choices=MAX_PLANNED,
                **own | {"scale": 3},
            )
            info = "10%, 4096 or 512MiB"
            budget = text("plan-budget", "Budget", info, value="10%", **_SMALL)
            info = "of kept entries"
            stores = ["plain", *STORES]
            store = dropdown("plan-store", "Store", info, stores, "plain", **_SMALL)
            info = "head, layer or page:16"
            layout = text("plan-layout", "Layout", info, value="head", **_SMALL)
            info = "whole or blocks:1024"
            prefill = text("plan-prefill", "Prefill", info, value="whole", **_SMALL)
        with gr.Accordion("A model of your own", open=False, elem_id="plan-own"):
            info = "Paste its config.json; it takes the place of the model above."
            config = text("plan-config", "config.json", info, (4, 12), max_length=MAX_CONFIG_BYTES)
        self.inputs = {
            "model": model,
            "memory": memory,
            "bandwidth": speed,
            "dtype": dtype,
            "prompt": prompt,
            "output": output,
            "variants": variants,
            "budget": budget,
            "store": store,
            "layout": layout,
            "prefill": prefill,
            "config": config,
        }

    def wire(self, page: gr.Blocks) -> None:
        given = [*self.inputs.values()]
        shown = [self.notice, self.table, self.equal, self.next]
        opened = page.load(self.open, None, [self.inputs[name] for name in CHOSEN], **AT_ONCE)
        opened.then(self.compute, given, shown, **AT_ONCE)
        changed = [
            part.change if isinstance(part, gr.Dropdown) else part.submit for part in given
        ] + [part.blur for part in given if not isinstance(part, gr.Dropdown)]
        gr.on(changed, self.compute, given, shown, trigger_mode="always_last", **AT_ONCE)

    # --- handlers -----------------------------------------------------------------------

    def open(self, request: gr.Request) -> list[Any]:
        """Fill in what the address names, and the form's own values for the rest."""
        query: Mapping[str, str] = request.query_params if request else {}
        values: dict[str, Any] = {name: query[name][:4000] for name in CHOSEN if name in query}
        if "variants" in values:
            values["variants"] = values["variants"].split(";")[:MAX_PLANNED]
        if not values.get("prompt", "0").isdecimal() or "prompt" not in values:
            values.pop("prompt", None)
        else:
            values["prompt"] = int(values["prompt"][:9])
        return [values.get(name, gr.skip()) for name in CHOSEN]

    def compute(self, *values: object) -> list[Any]:
        """The tables, or a sentence on what is wrong; a client may send anything."""
        given = dict(zip(self.inputs, values, strict=True))
        try:
            return self._computed(given)
        except CkvError as error:
            return [refused(error, self.inputs), gr.skip(), gr.skip(), gr.skip()]

    def _computed(self, given: Mapping[str, object]) -> list[Any]:
        words = {name: str(value or "").strip()[:200] for name, value in given.items()}
        config = str(given["config"] or "").strip()
        with about("config" if config else "model"):
            shape = (
                shape_of_text(config, "the pasted config")
                if config
                else planned_shape(words["model"], with_paths=False)
            )
        setting = Setting(
            memory=parse_bytes(words["memory"], "memory"),
            prompt=_whole(given["prompt"], "prompt"),
            output=_whole(given["output"], "output"),
            dtype=words["dtype"],
            bandwidth=parse_bytes(words["bandwidth"], "bandwidth"),
        )
        specs = _specs(given["variants"], words)
        rows = plan_table(shape, setting, plan(shape, setting, specs)).value()
        evicting = [spec for spec in specs if spec.method.evicts and not spec.store.reads_part]
        if not evicting:
            return [SILENT, rows, None, SILENT]
        equal = [*equal_bytes(shape, setting, evicting[0])]
        ways = tuple(dict.fromkeys(row.spec for row in equal))
        form = FormValues(variants=ways, model=shape.name)
        link = ("Compare these on a text", f"/?{urlencode({'setup': setup_of(form)[0]})}")
        at = budget_words(evicting[0].budget)
        says = f"{evicting[0].label} at {at}: evict, store in fewer bits, or both."
        return [SILENT, rows, equal_table(equal).value(), notice_value(says, "", [link])]


_SMALL: dict[str, Any] = {"min_width": 120}


def _specs(given: object, words: Mapping[str, str]) -> list[VariantSpec]:
    """The variants, with the form's budget, store and the like where they leave them out."""
    names = given if isinstance(given, list | tuple) else []
    plain = {"budget": "", "store": "plain", "layout": "head", "prefill": "whole"}
    wanted = {key: words[key] for key, word in plain.items() if words[key] not in ("", word)}
    with about("variants"):
        if len(names) > MAX_PLANNED:
            raise ConfigError(f"Up to {MAX_PLANNED} methods can be planned at a time.")
        return [VariantSpec.parse(str(name)[:1000], wanted) for name in names]


def _whole(value: object, field: str) -> int:
    if isinstance(value, int | float) and abs(value) < 10**9 and float(value).is_integer():
        return int(value)
    with about(field):
        raise ConfigError(f"{field} must be a whole number of tokens.")
