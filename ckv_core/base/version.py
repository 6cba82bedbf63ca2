"""The version of this package, which results name."""

__version__ = "0.1.0"
