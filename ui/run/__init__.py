"""The Run page: one run by its address, and its share links."""
