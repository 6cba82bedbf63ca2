"""The Aggregate page: means over the prompts of several stored runs."""
