"""The receipt and the figures of every variant, one row each."""

from ui.components.base import component

SummaryTable = component(__file__, "summary_table")
"""Shows {"head", "columns", "rows", "notes"}; a friendly line while the value is None.

`head` is a sentence above the rows, or empty; `columns` a list of
{"key", "label", "help", "unit", "align", "extra"}, the extra ones shown on demand, while the
download has all of them; `rows` a list of
{"look", "label", "spec", "regime", "cells": {key: {"text", "title", "tone"}}} with tone
"", "warn" or "good"; `notes` a list of sentences.
"""
