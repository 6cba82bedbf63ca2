"""Starts the emulated devices of `device.cpp` in this process, which is then good for nothing else.

The devices have the type `fakegpu`, count as CUDA in `is_cuda_like`, and answer the calls of
torch.cuda that the engine makes. The kernels that PyTorch has for CUDA alone have Python bodies
here, with the shapes, types and strides that CUDA asks for as assertions. They show how kernels are
called, never what they compute or how fast.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ckv_core.base import devices

SOURCE = Path(__file__).with_name("device.cpp")
NAME = "fakegpu"
HALF = (torch.float16, torch.bfloat16)
# What makes the host wait for the device.
WAITS = ("item", "D2H", "event", "synchronize", "nonzero")
_REPORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)


def compiler() -> str | None:
    """Path of a C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "c++"))


def library() -> Path:
    """The compiled device, made once for each source and PyTorch; CalledProcessError if not."""
    root = Path(torch.__file__).parent
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ckv-fake-device-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / f"{key}.so"
    if not made.exists():
        part = folder / f"{key}.{os.getpid()}.part"
        includes = [root / "include", root / "include/torch/csrc/api/include"]
        subprocess.run(
            [
                *(str(compiler()), "-std=c++20", "-O0", "-w", "-fPIC", "-shared"),
                *(f"-isystem{path}" for path in includes),
                *(str(SOURCE), f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(part)),
            ],
            check=True,
        )
        part.rename(made)  # two processes may compile at a time
    return made


class FakeDevices:
    """Emulated devices of one process.

    Attributes:
        events: how often each kind of copy, wait and kernel was called.
        places: the same by the line of ckv_core that asked for it.
        total: bytes of each device.
        capability: of all devices, as CUDA counts compute capabilities.
    """

    def __init__(self, count: int) -> None:
        self.events: Counter[str] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        self.total = [64 * 2**30] * count
        self.capability = (9, 0)
        self._kept: list[Any] = []  # what PyTorch and C hold no reference to
        self._library = ctypes.CDLL(str(library()))
        for name in ("fake_live", "fake_peak", "fake_launches"):
            getattr(self._library, name).restype = ctypes.c_int64
        self._library.fake_start(count)
        callback = _REPORT(lambda kind, _name: self.count(kind.decode()))
        self._library.fake_report_to(callback)
        self._kept.append(callback)
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, self._module(count))
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        devices.CUDA_LIKE.append(NAME)
        self._answer_for_cuda(count)
        self._answer_for_kernels()

    def count(self, kind: str) -> None:
        """Note one event and where in ckv_core it comes from."""
        self.events[kind] += 1
        frame = sys._getframe(1)
        while frame is not None and "/ckv_core/" not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None:
            name = frame.f_code.co_filename.rpartition("/ckv_core/")[2]
            self.places[kind, f"{name}:{frame.f_lineno}"] += 1

    @property
    def waits(self) -> int:
        """How often the host has waited."""
        return sum(self.events[kind] for kind in WAITS)

    @property
    def launches(self) -> int:
        """How many kernels the devices were given, copies included."""
        return int(self._library.fake_launches())

    def live(self, device: int) -> int:
        """Bytes that live on a device."""
        return int(self._library.fake_live(device))

    def _module(self, count: int) -> types.ModuleType:
        module: Any = types.ModuleType(f"torch.{NAME}")
        module.is_available = module.is_initialized = lambda: True
        module.device_count = lambda: count
        module.current_device = self._library.fake_current
        module.set_device = lambda device: self._library.fake_set_current(_index(device))
        module._is_in_bad_fork = lambda: False
        for name in ("manual_seed", "manual_seed_all", "_lazy_init", "synchronize", "empty_cache"):
            setattr(module, name, lambda *_given: None)
        module.get_rng_state = lambda _device=None: torch.get_rng_state()
        module.set_rng_state = lambda _state, _device=None: None
        module.get_amp_supported_dtype = lambda: list(HALF)
        return module

    def _answer_for_cuda(self, count: int) -> None:
        cuda: Any = torch.cuda
        fakes = self

        class Event:
            def __init__(self, *, enable_timing: bool = False) -> None:
                self.is_timed = enable_timing

            def elapsed_time(self, other: "Event") -> float:
                assert self.is_timed
                assert other.is_timed
                return 1.0

            def record(self, *_stream: object) -> None:
                pass

            def synchronize(self) -> None:
                fakes.count("event")

        def live(device: Any = None) -> int:
            return self.live(_index(device))

        cuda.Event = Event
        cuda.CUDAGraph, cuda.graph = partial(_Graph, self), _Recording
        cuda.current_stream = lambda _device=None: None
        cuda.is_available = lambda: True
        cuda.device_count = lambda: count
        cuda.empty_cache = lambda: None
        cuda.get_device_name = lambda _device=None: "emulated"
        cuda.set_sync_debug_mode = lambda _mode: None
        cuda.synchronize = lambda _device=None: self.count("synchronize")
        cuda.mem_get_info = lambda device=None: (
            max(0, self.total[_index(device)] - live(device)),
            self.total[_index(device)],
        )
        cuda.memory_reserved = cuda.memory_allocated = live
        cuda.max_memory_allocated = lambda device=None: self._library.fake_peak(_index(device))
        cuda.reset_peak_memory_stats = lambda device=None: self._library.fake_reset_peak(
            _index(device)
        )
        cuda.get_device_capability = lambda _device=None: self.capability

    def _answer_for_kernels(self) -> None:
        kernels = torch.library.Library("aten", "IMPL")
        for name, body in (
            ("bmm.dtype", self._bmm),
            ("_flash_attention_forward", self._flash_varlen),
            ("_scaled_dot_product_flash_attention", self._flash),
        ):
            kernels.impl(name, partial(self._launched, body), "PrivateUse1")
        self._kept.append(kernels)
        torch.backends.cuda.is_flash_attention_available = lambda: True

    def _launched(self, body: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """One launch, however many operators a body takes in its stead."""
        before = self.launches
        answer = body(*given, **named)
        self._library.fake_set_launches(ctypes.c_int64(before + 1))
        return answer

    def _bmm(self, one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
        assert one.dtype == other.dtype
        assert one.dtype in HALF
        assert dtype == torch.float32
        return torch.bmm(one.float(), other.float())

    def _flash_varlen(  # noqa: PLR0917 - the kernel's own signature
        self, q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor,
        longest_q: int, longest_k: int, dropout: float, causal: bool, debug: bool,
        *, scale: float, seqused_k: Tensor | None = None, **_more: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if self.capability < (8, 0):
            raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
        self.count("flash varlen")
        _check_flash(q, k, v)
        assert starts_q.dtype == starts_k.dtype == torch.int32
        assert starts_q.device == starts_k.device == q.device
        assert q.shape[1] % k.shape[1] == 0
        assert (causal, dropout, debug) == (False, 0.0, False)
        ends_q, ends_k = (starts.cpu().tolist() for starts in (starts_q, starts_k))
        used = [] if seqused_k is None else seqused_k.cpu().tolist()
        self.events["D2H"] -= 2 + (seqused_k is not None)  # what the kernel reads on the device
        assert len(ends_q) == len(ends_k)
        assert [ends_q[-1], ends_k[-1]] == [len(q), len(k)]
        out, total = torch.empty_like(q), q.new_empty(q.shape[1], len(q), dtype=torch.float32)
        for at in range(len(ends_q) - 1):
            rows, seen = slice(*ends_q[at : at + 2]), slice(*ends_k[at : at + 2])
            assert rows.stop - rows.start <= longest_q
            assert seen.stop - seen.start <= longest_k
            if used:
                assert 0 < used[at] <= seen.stop - seen.start
                seen = slice(seen.start, seen.start + used[at])
            logits = torch.einsum("qhd,khd->hqk", q[rows].float(), k[seen].float()) * scale
            total[:, rows] = logits.logsumexp(-1)
            out[rows] = torch.einsum("hqk,khd->qhd", logits.softmax(-1), v[seen].float()).to(q)
        unused = q.new_empty(0)
        return out, total, unused, unused, unused

    def _flash(
        self, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False,
        return_debug_mask: bool = False, *, scale: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        self.count("flash")
        _check_flash(q, k, v)
        group = q.shape[1] // k.shape[1]
        keys, values = (each.float().repeat_interleave(group, 1) for each in (k, v))
        logits = q.float() @ keys.transpose(2, 3) * scale
        if is_causal:  # aligned at the lower right, as CUDA's kernel does
            rows, seen = logits.shape[-2:]
            future = torch.ones(rows, seen, dtype=torch.bool, device=q.device)
            logits.masked_fill_(future.triu(seen - rows + 1), -torch.inf)
        none = q.new_empty(0)
        out = (logits.softmax(-1) @ values).to(q)
        return out, logits.logsumexp(-1), none, none, q.shape[2], k.shape[2], none, none, none


class _Graph:
    """What an emulated device was told to run: replayed on the same tensors, as CUDA does."""

    def __init__(self, fakes: FakeDevices) -> None:
        self.fakes = fakes
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def replay(self) -> None:
        self.fakes.count("graph")
        for function, given, named, outputs in self.calls:
            for old, new in zip(outputs, _tensors(function(*given, **named)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Recording(TorchDispatchMode):
    """Notes the operators inside; what they wrote over is put back, for CUDA runs none of them."""

    def __init__(self, graph: _Graph, capture_error_mode: str) -> None:
        super().__init__()
        assert capture_error_mode == "thread_local"
        self._graph, self._waits = graph, graph.fakes.waits
        self._before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        for argument, value in zip(function._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._before.append((value, value.clone()))
        answer = function(*args, **named)
        self._graph.calls.append((function, args, named, _tensors(answer)))
        if self._graph.fakes.waits > self._waits:
            raise RuntimeError("operation not permitted when stream is capturing")
        return answer

    def __exit__(self, *failed: Any) -> None:
        super().__exit__(*failed)
        for tensor, before in reversed(self._before):
            tensor.copy_(before)


def _tensors(answer: Any) -> list[Tensor]:
    """Those that an operator gives."""
    found = answer if isinstance(answer, (tuple, list)) else [answer]
    return [each for each in found if isinstance(each, Tensor)]


def _check_flash(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What the flash kernel refuses."""
    assert q.dtype in HALF
    assert q.dtype == k.dtype == v.dtype
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert q.shape[-1] == k.shape[-1] == v.shape[-1], "heads of one size"
    assert q.shape[-1] % 8 == 0
    assert q.shape[-1] <= 256


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    return 0 if device is None else torch.device(device).index or 0
