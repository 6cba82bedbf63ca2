"""What belongs to the process: folders, logs, terminal, clock, device memory, bounded JSON.

Imports nothing of the project but `errors`; knows no method, model or result.
"""
