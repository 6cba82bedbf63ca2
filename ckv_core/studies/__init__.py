"""Studies: many samples x variants x budgets with one model, and what they decide. No torch."""
