"""Selectors: which entries a head keeps, given scores and a budget."""
