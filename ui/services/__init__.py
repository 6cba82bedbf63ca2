"""What pages may call: start, watch, find, share and study runs. No Gradio."""
