"""The receipt and the figures of every variant, one row each."""

from ui.components.base import ScriptedHtml


class SummaryTable(ScriptedHtml):
    """Shows {"columns", "rows", "notes"}; a friendly line while the value is None.

    `columns` is a list of {"key", "label", "help", "unit", "align", "extra"}, the extra ones
    shown on demand, while the download has all of them; `rows` a list of
    {"index", "label", "spec", "cells": {key: {"text", "title", "tone"}}} with tone
    "", "warn" or "good"; `notes` a list of sentences.
    """

    NAME = "summary-table"
    SCRIPTS = ("summary_table.js",)
