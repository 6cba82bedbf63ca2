"""Scores: how much evidence speaks for keeping each prompt entry."""
