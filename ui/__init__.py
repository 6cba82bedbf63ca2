"""The dashboard: pages, charts and services. Never imports torch."""
