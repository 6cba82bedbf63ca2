"""KV-cache eviction: capture, score, allocate, select, compact, decode, measure.

Importing this package costs nothing; torch is loaded by the modules that compute.
"""

__version__ = "0.1.0"
