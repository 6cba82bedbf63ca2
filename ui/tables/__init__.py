"""What tables and CSV say of runs, as plain values. No Gradio, no services, no database."""
