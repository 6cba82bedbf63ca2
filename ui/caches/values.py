"""Kept caches and what was asked of them, as the components show it. No Gradio."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from ckv_core.results.kept_folder import KeptEntry
from ckv_core.runtime.memory_line import human_bytes
from ui.services.caches import CacheJob

COLUMNS = (
    ("name", "Name", "", "left"),
    ("variant", "Variant", "SPEC", "left"),
    ("model", "Model", "", "left"),
    ("budget", "Budget", "tokens a KV head", "right"),
    ("context", "Context", "tokens", "right"),
    ("entries", "Kept entries", "", "right"),
    ("memory", "In memory", "evictable layers", "right"),
    ("full", "Full cache", "", "right"),
    ("file", "File", "", "right"),
    ("made", "Made", "UTC", "left"),
    ("take", "Take away", "safetensors", "left"),
)
NOTE = (
    "A file has the kept keys and values, their positions, the receipt, and the whole context as "
    "text: whoever gets the file can read it."
)
EMPTY = (
    "No cache is kept yet. Open a finished run of the scenario context-only; below its results is "
    "Keep a cache. Or use the command line: python -m ckv_core cache keep."
)


def caches_table(entries: Sequence[KeptEntry]) -> dict[str, Any]:
    """Value of the DataTable of all kept caches."""
    return {
        "caption": "Kept caches",
        "columns": [
            {"key": key, "label": label, "unit": unit, "align": align}
            for key, label, unit, align in COLUMNS
        ],
        "rows": [{"look": None, "cells": _cells(entry)} for entry in entries],
        "note": NOTE,
        "file": "caches.csv",
        "empty": EMPTY,
    }


def _cells(entry: KeptEntry) -> dict[str, Any]:
    record = entry.record
    if record is None:
        return {"name": {"text": entry.name}, "variant": {"text": "cannot be read; delete it"}}
    receipt = record.receipt
    return {
        "name": {"text": entry.name},
        "variant": {"text": record.spec},
        "model": {"text": record.model.name},
        "budget": _count(receipt.budget_tokens),
        "context": _count(record.compressed_tokens),
        "entries": _count(receipt.retained_entries),
        "memory": _size(receipt.cache_bytes),
        "full": _size(receipt.full_cache_bytes),
        "file": _size(entry.size),
        "made": {"text": record.created[:16].replace("T", " ")},
        "take": {"text": "Download", "href": f"/caches/file?name={quote(entry.name)}"},
    }


def _count(value: int) -> dict[str, Any]:
    return {"text": f"{value:,}", "value": value}


def _size(value: int) -> dict[str, Any]:
    return {"text": human_bytes(value), "value": value}


def answers_value(jobs: Sequence[CacheJob]) -> dict[str, Any]:
    """Value of the list of questions and answers."""
    return {
        "rows": [
            {
                "question": job.question,
                "text": job.text,
                "told": job_sentence(job),
                "tone": "error" if job.state == "failed" else "",
            }
            for job in jobs
        ]
    }


def job_sentence(job: CacheJob) -> str:
    """Where a job is, or how it ended; empty once it is done."""
    if job.state == "queued":
        return "Waits for its turn."
    if job.state == "failed":
        return job.reason
    if job.state == "cancelled":
        return "Cancelled."
    if job.progress is None:
        return ""
    share = "" if job.progress.fraction is None else f" {job.progress.fraction:.0%}"
    return f"{job.progress.stage.capitalize()}{share}: {job.progress.detail}"
