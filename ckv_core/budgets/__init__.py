"""Budget rules: how the total is divided over layers and KV heads."""
