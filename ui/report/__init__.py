"""Files that take a run along: HTML report, LLM Comparator's JSON, code for kvpress."""
