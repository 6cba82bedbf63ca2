"""The process that owns the model, and the client that talks to it."""
