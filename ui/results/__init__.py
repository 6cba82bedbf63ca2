"""The block of results that the Compare, Sweep and Run pages share, and what feeds it."""
