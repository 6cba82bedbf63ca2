"""Plain values that cross processes and rooms: requests, results, metrics, their JSON. No torch.

They know methods by their declarations; they know no model and no engine.
"""
