"""One comparison from prompt to events: plan, select, measure, decode, follow up, sweep.

The one room that puts engine and measure together; knows no worker, command or page.
"""
