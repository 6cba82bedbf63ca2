"""Prefill once, select per variant, decode all variants together."""
