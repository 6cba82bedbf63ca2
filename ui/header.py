"""Name of the app and its pages, above every page."""

from ui.theme import LOGO_PATH

TITLE = "CriticalKV Lab"
PAGES = {"/": "Compare", "/sweep": "Sweep", "/runs": "Runs", "/methods": "Methods"}
_HEADER = """<header class="ckv-header">{logo}<h1>{title}</h1>
<p>What each KV-cache eviction method keeps of a prompt, and what that does to the model</p>
<nav aria-label="Pages">{links}</nav></header>"""


def header_html(path: str, *, current: str = "page") -> str:
    """Our own, because Gradio's bar cannot stand beside the name.

    Args:
        path: of the page to mark; empty for none.
        current: `page`, or `true` where the page shown belongs to the marked one.
    """
    links = "".join(
        f'<a href="{target}"{f" aria-current={current}" if target == path else ""}>{name}</a>'
        for target, name in PAGES.items()
    )
    return _HEADER.format(logo=LOGO_PATH.read_text("utf-8"), title=TITLE, links=links)
