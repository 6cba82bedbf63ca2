"""Share: a run's own address, and links that open it, which are made, listed and revoked."""

from datetime import UTC, datetime
from typing import Any

import gradio as gr
from gradio.blocks import Block

from ckv_core.errors import CkvError
from storage.credentials import CredentialRecord
from storage.repository import is_slug
from ui.components.base import component
from ui.services.services import Services
from ui.services.shares import EXPIRIES_DAYS
from ui.shell.parts import AT_ONCE, event_field

ShareLinks = component(__file__, "share_links")
"""Shows {"slug", "words"}, and to who may share it {"expiries", "rows", "path", "message"} too.

`rows` is a list of {"id", "created", "expires", "state"}. Triggers `issue` with {expiry} and
`revoke` with {id}. `path` is of the link that was just made.
"""
PLAIN = "This app has no logins: anyone who can reach it opens this run with its link."


class ShareSection:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._links = ShareLinks(elem_id="share")
        self.outputs: list[Block] = [self._links]

    def wire(self, slug: gr.Textbox) -> None:
        self._links.issue(self.issue, [slug], [self._links], **AT_ONCE)
        self._links.revoke(self.revoke, [slug], [self._links], **AT_ONCE)

    def open(self, slug: str) -> list[Any]:
        """Show the address, and its links to a viewer who may share the run; empty is no run."""
        if not slug:
            return [None]
        return [self._value(slug) if self._services.may_change(slug) else {"slug": slug}]

    def issue(self, slug: str, event: gr.EventData) -> dict[str, Any]:
        """Make a link; its address is shown this once."""
        try:
            if not is_slug(slug) or not self._services.with_logins:
                return self._value(slug)
            token = self._services.shares.create(slug, str(event_field(event, "expiry")))
        except CkvError as error:
            return self._value(slug, notice=str(error))
        return self._value(slug, path=f"/s/{token}")

    def revoke(self, slug: str, event: gr.EventData) -> dict[str, Any]:
        share_id = event_field(event, "id")
        if not is_slug(slug) or not isinstance(share_id, int) or not 0 < share_id < 2**63:
            return self._value(slug)
        notice = "That link is closed already."
        try:
            if self._services.shares.revoke(slug, share_id):
                notice = "The link is revoked; it opens nothing any more."
        except CkvError as error:
            notice = str(error)
        return self._value(slug, notice=notice)

    def _value(self, slug: str, *, path: str = "", notice: str = "") -> dict[str, Any]:
        if not self._services.with_logins:
            return {"slug": slug, "words": PLAIN}
        try:
            records = self._services.shares.of_run(slug) if is_slug(slug) else []
        except CkvError as error:
            records, notice = [], str(error)
        now = datetime.now(UTC)
        return {
            "slug": slug,
            "expiries": list(EXPIRIES_DAYS),
            "rows": [_row(record, now) for record in records],
            "path": path,
            "message": notice,
        }


def _row(record: CredentialRecord, now: datetime) -> dict[str, Any]:
    ends = record.expires_at
    if record.revoked_at is not None:
        state = "revoked"
    else:
        state = "open" if ends is None or now < ends else "expired"
    return {
        "id": record.id,
        "created": record.created_at.isoformat(),
        "expires": ends.isoformat() if ends else None,
        "state": state,
    }
