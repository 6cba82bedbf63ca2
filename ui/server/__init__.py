"""Serving over HTTP: viewers, what a request may carry, proxies, streams, health. Not pages."""
