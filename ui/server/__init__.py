"""Serving over HTTP: who asks, what a request may carry, proxies, streams, health. Not pages."""
