"""Text files that are read in the browser, so that no upload exists."""

from ui.components.base import component

ContextBar = component(__file__, "context_bar")
"""Opens a text file into #context and shows the token count {"text", "tone"}.

The file is read in the browser, so no upload exists. Triggers `count` once typing rests.
"""

StudyFile = component(__file__, "study_file")
"""Reads a file of samples in the browser into #study-data."""
