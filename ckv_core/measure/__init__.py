"""What one decoding step tells, with torch: distances, bounds, oracles, fidelity, the floor.

Knows the engine; knows nothing of what a comparison does in which order.
"""
