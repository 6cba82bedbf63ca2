"""What is read off results: statistics, sweeps, ablation, evidence, verdicts. No torch.

Knows requests and results; knows no engine.
"""
