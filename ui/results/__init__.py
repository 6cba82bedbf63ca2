"""The block of results that the Compare and the Run page share, and what feeds it."""
