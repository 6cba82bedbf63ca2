"""The Sweep page: budgets x alphas x methods on one prompt."""
