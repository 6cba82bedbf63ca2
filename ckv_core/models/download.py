"""How far a download from the Hub is, told to whoever waits for it instead of drawn."""

from typing import Any

from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from ckv_core.models.steps import Meter


def progress_bar(meter: Meter) -> type[tqdm]:
    """A class for `snapshot_download`; what the meter's report raises stops the download.

    The client makes several bars: of files, of bytes received, and of bytes written, which differ
    where files arrive in packed pieces. The one that is furthest is told.
    """
    furthest = 0.0

    class Bar(tqdm):
        """Draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            self._done = float(kwargs.get("initial", 0))
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            nonlocal furthest
            self._done += n or 0
            if self._counts_bytes and self._done >= furthest:
                furthest = self._done
                meter.at(furthest, self.total or None)

    return Bar
