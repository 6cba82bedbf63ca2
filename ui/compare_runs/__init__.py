"""The page /compare-runs: two to four saved runs beside one another."""
