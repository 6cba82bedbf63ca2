"""What belongs to the process: folders, logs, terminal, clock, device memory, checked files.

It imports nothing of the project but `errors`; it knows no method, model or result.
"""
