"""KV caches that really are as small as what was kept."""
