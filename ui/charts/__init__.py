"""Charts: a run's records in, a small Plotly figure or CSV text out. No Gradio, no torch."""
