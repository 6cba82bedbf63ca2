"""Variants to choose from, by class."""

from ui.components.base import component

VariantPicker = component(__file__, "variant_picker")
"""Chooses among what `picker_offer` (ui/compare/offers.py) gives; the value is a list of SPECs.

Triggers `input` when the reader changes it.
"""
