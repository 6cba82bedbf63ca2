"""The pages /studies and /study: many samples, what they decide, and how far they are."""
