"""Made-up records, runs and services: a test takes one and says what it changes in it."""
