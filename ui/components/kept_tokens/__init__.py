"""Which prompt entries each variant kept: linked heat maps, text, search and evidence."""

from ui.components.base import component

KeptTokens = component(__file__, "kept_tokens")
"""Fetches and shows the retained sets of a run; a friendly line while the value is None.

The value is {"slug", "base", "layers", "kv_heads", "positions", "evictable", "variants",
"context", "key"}. `variants` is a list of {"index", "look", "label", "spec"} of the variants
that have a retained set, each optionally with "window", "sinks" and "protected", a list of
[first, end] (what is always kept, drawn as brackets), and how its generation went,
"first_difference" and "finished"; "answer" is the reference answer to look for. A changed
`key` fetches again. Those that evict while generating have "entries", held at the choice of
each token, and `BASE/SLUG/INDEX/evicted` answers the rows of `HeldSeries.evicted`.
`BASE/SLUG/prompt` answers JSON {"pieces", "compressed", "tokens", "context"},
`BASE/SLUG/INDEX/retained` the bytes of `RetainedSet.bits`.

The selection lives in location.hash (#token=123&variant=2&layer=4&span=100-140), so a
copied address shows the same spot.
"""
