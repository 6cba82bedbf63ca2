"""What came out, as plain values: records, events, figures, JSON. No torch.

Knows requests; knows neither the engine nor what is read off several results.
"""
