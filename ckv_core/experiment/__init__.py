"""Samples x variants x budgets: tasks, scores, the table, statistics, decision and verdict."""
