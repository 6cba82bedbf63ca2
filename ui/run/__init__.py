"""The Run page: one run by its address, its lineage and share links."""
