"""How things look everywhere: colours, marks, theme, words that explain themselves."""
