"""The whole computation once more, slowly and literally: what the engine is tested against.

Nothing here imports the engine. Each function names the definition that it spells out:
the design's canonical semantics, the method sheet's formulas, or the paper (Feng et al.,
CriticalKV, arXiv:2502.03805, Algorithms 1 and 2).
"""
