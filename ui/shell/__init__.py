"""What stands around every page: header, head, plain pages, small shared controls."""
