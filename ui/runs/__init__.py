"""The Runs page: find, name, tag, import and export saved runs."""
