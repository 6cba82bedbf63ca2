"""Compress once, ask many: kept caches, questions to them, and the section that keeps one."""
