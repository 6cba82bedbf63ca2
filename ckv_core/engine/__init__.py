"""From a request to events: prefill once, select per variant, decode together, measure."""
