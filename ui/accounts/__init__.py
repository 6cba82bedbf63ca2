"""Users: passwords, sessions, tokens, who may see what, administration. No pages, no routes."""
