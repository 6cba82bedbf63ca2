"""The Compare page, its form, and the controls that other forms share with it."""
