"""The pages: each builds its controls and wires its handlers; the text is in the components."""
