"""Links to the sections of a page."""

from ui.components.base import component

SectionLinks = component(__file__, "section_links")
"""Links to the headed sections of the `ckv-results` around it; has no value."""
