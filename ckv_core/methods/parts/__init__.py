"""Parts that methods are composed of; no torch is imported before one of them computes."""
