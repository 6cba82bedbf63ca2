"""What is requested: SPECs, budgets, grids, external selections, the request of a run. No torch.

Knows methods by their declarations; knows no model, engine or result.
"""
