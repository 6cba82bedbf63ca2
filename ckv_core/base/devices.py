"""Which devices work as CUDA does: asynchronously, with an allocator and kernels of their own."""

import torch

# Device types; models go to the last one. A test that imitates a GPU adds its own.
CUDA_LIKE = ["cuda"]


def is_cuda_like(device: torch.device) -> bool:
    """Whether a device is CUDA, or is to be treated as CUDA."""
    return device.type in CUDA_LIKE


def may_run_triton(device: torch.device) -> bool:
    """Whether kernels of Triton, which go to the current device, may reach this one."""
    return device.type == "cuda" and device.index in (None, torch.cuda.current_device())
