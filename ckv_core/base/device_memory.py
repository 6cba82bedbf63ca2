"""What memory the device has, how much a run took at its peak, and giving memory back."""

import ctypes
import gc
import sys
from pathlib import Path

import psutil
import torch

from ckv_core.base.devices import is_cuda_like

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
# Folder, limit and usage of a control group, of version 2 and of version 1.
_GROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_RESET_PEAK = "5"  # proc(5): set the peak resident size to the present one


def available_bytes(device: torch.device) -> int:
    """Bytes that a run may still take: of the device, or of this process's share of the host."""
    if is_cuda_like(device):
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    return min([int(psutil.virtual_memory().available), *_group_limits(Path("/"))])


def _group_limits(root: Path) -> list[int]:
    """Bytes that this process's control groups still allow, versions 1 and 2; empty without any."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    rooms: list[int | None] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, limit, usage = _GROUPS[bool(controllers)]
        # Inside a container the group's own path may not be there: its files lie at the base.
        rooms += [
            _group_room(folder / limit, folder / usage, folder / "memory.stat")
            for folder in (root / base / path.lstrip("/"), root / base)
        ]
    return [room for room in rooms if room is not None]


def _group_room(limit: Path, usage: Path, stat: Path) -> int | None:
    try:
        most, used = limit.read_text(encoding="ascii").strip(), int(usage.read_text("ascii"))
        figures = dict(line.split() for line in stat.read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return None
    if not most.isdigit():  # `max`: no limit
        return None
    # File pages count as used but are given up before anything is refused.
    reclaimable = int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))
    return max(0, int(most) - used + reclaimable)


def give_back() -> None:
    """Hand memory that is no longer used back to the system or the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim()


def keep_for_good() -> None:
    """Leave what is there now out of later collections: each run makes one, 0.25 s for imports."""
    gc.collect()
    gc.freeze()


def trim() -> None:
    """Hand the C library's free memory back to the system.

    It keeps freed blocks below 32 MiB for itself, so a dropped cache of many layers would still
    count as this process's.
    """
    if sys.platform == "linux":
        release = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if release is not None:  # not in musl
            release(0)


class PeakMemory:
    """The most memory that was in use since this object was made, above what was in use then.

    On CUDA it is what the allocator handed out (of several GPUs the sum of their peaks), on Linux
    the resident size of the process (small samples of the kernel may be some hundred KiB late),
    less the pages of files that came in since: weights are mapped from theirs, and the system drops
    and reads them as it likes. Elsewhere it is not known.
    """

    def __init__(self, *devices: torch.device) -> None:
        self._gpus = [device for device in devices if is_cuda_like(device)]
        self._start: int | None = None
        if not self.restart():
            return
        if self._gpus:
            self._start = sum(map(torch.cuda.memory_allocated, self._gpus))
            return
        self._start = _status_bytes("VmRSS")
        self._mapped = _status_bytes("RssFile") or 0

    def restart(self) -> bool:
        """Forget the peak so far, but not what was in use; whether the system can."""
        for device in self._gpus:
            torch.cuda.reset_peak_memory_stats(device)
        try:
            return bool(self._gpus or _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii"))
        except OSError:
            return False

    def growth(self) -> int | None:
        """Bytes; None where the system does not tell."""
        if self._start is None:
            return None
        if self._gpus:
            return int(sum(map(torch.cuda.max_memory_allocated, self._gpus))) - self._start
        peak = _status_bytes("VmHWM")
        if peak is None:
            return None
        mapped = max(0, (_status_bytes("RssFile") or 0) - self._mapped)
        return max(0, peak - self._start - mapped)


def _status_bytes(name: str) -> int | None:
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
