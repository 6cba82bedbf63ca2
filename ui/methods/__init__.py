"""The Methods page, generated from the registry."""
