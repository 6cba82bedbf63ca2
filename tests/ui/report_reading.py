"""A report read without a browser: its markup, its policy and the files that it carries."""

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from typing import Any

from ckv_core.records.records import VariantResult
from tests.factories.app import request, snapshot
from tests.factories.runs import analysed
from ui.services.live_runs import RunSnapshot

_FILE = re.compile(r'<script type="text/plain" data-file="([^"]*)">([A-Za-z0-9+/=]*)</script>')
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
BUMP = "window.bumped=(window.bumped||0)+1"
LINE_SEPARATORS = "\u2028\u2029"
HOSTILE = (
    f"</script><img src=x onerror={BUMP}><!--<script>{BUMP}</script>--> "
    f"</main></body>\"'><svg onload='{BUMP}'> ${{{BUMP}}} ]]> {LINE_SEPARATORS} &lt;b&gt; "
    f"<a href='javascript:{BUMP}'>x</a>\x00"
)


@dataclasses.dataclass(frozen=True)
class Opened:
    """What a report holds, by address."""

    markup: str
    policy: str
    files: dict[str, bytes]

    @property
    def page(self) -> dict[str, Any]:
        """What its own script draws."""
        return dict(json.loads(self.files["page"]))

    def section(self, name: str) -> dict[str, Any]:
        """One section by its anchor."""
        return next(each for each in self.page["sections"] if each["name"] == name)

    def value(self, section: str, at: int = 0) -> Any:
        """What a section's component is given."""
        return self.section(section)["components"][at]["value"]


def opened(data: bytes) -> Opened:
    """Read a report; its script must be the one that its policy lets run."""
    text = data.decode()
    files = {
        name: gzip.decompress(base64.b64decode(packed)) for name, packed in _FILE.findall(text)
    }
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    (script,) = _SCRIPT.findall(text)
    assert hash_of(script.encode()) in policy
    return Opened(_FILE.sub("", text), policy, files)


def hash_of(script: bytes) -> str:
    """As a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


def run(**changes: Any) -> RunSnapshot:
    """A finished run with every part of the diagnostics."""
    return snapshot(**{"result": analysed(), **changes})


def hostile_run() -> RunSnapshot:
    """The same, with hostile words in every text."""
    result = analysed()
    assert result.model is not None
    assert result.prompt is not None
    result.model = dataclasses.replace(result.model, name=HOSTILE)
    result.prompt = dataclasses.replace(
        result.prompt, pieces=tuple(f"{HOSTILE}{at}" for at in range(len(result.prompt.pieces)))
    )
    result.variants = [_hostile_variant(variant) for variant in result.variants]
    result.environment = {HOSTILE: HOSTILE}
    asked = request(context=HOSTILE, question=HOSTILE, answer=HOSTILE, model=HOSTILE)
    return snapshot(title=HOSTILE, reason=HOSTILE, result=result, request=asked)


def _hostile_variant(variant: VariantResult) -> VariantResult:
    assert variant.receipt is not None
    texts = (HOSTILE, "</script>")
    answers = tuple(
        dataclasses.replace(each, question=HOSTILE, text=HOSTILE, token_texts=(HOSTILE,))
        for each in variant.follow_ups
    )
    return dataclasses.replace(
        variant,
        label=f"{variant.label} {HOSTILE}",
        spec=f"{variant.spec}{HOSTILE}",
        receipt=dataclasses.replace(variant.receipt, warnings=(HOSTILE,)),
        text="".join(texts),
        token_texts=texts,
        follow_ups=answers,
    )
