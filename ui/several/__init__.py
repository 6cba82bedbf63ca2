"""The page of several runs: one table over their prompts, and only what differs."""
