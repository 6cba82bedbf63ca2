"""Models: preparing, loading, checking, and the attention function that they call."""
