"""Saved runs: tables, migrations, queries and the one writer. No gradio, no torch."""
