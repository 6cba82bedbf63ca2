"""Presses of kvpress, run in an environment and a process of their own."""
