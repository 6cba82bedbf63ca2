"""An experiment's numbers: intervals, pairs and the decision. No torch."""
