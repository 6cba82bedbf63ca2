"""Files that take a run along: HTML report, code for kvpress."""
