"""Shape checks at public borders, so that a wrong tensor fails where it enters."""

from torch import Tensor


def check_shape(name: str, tensor: Tensor, axes: str, sizes: dict[str, int]) -> None:
    """Check a tensor's axes and remember the sizes of axes not yet known.

    Args:
        name: for the message.
        tensor: what came in.
        axes: axis names separated by blanks, e.g. "kv_heads prompt_len head_dim".
        sizes: known axis sizes; extended in place.

    Raises:
        ValueError: a programming error; says what was expected and what came.
    """
    names = axes.split()
    if tensor.dim() != len(names):
        raise ValueError(f"{name} must be [{axes}], got shape {list(tensor.shape)}")
    for axis, size in zip(names, tensor.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise ValueError(f"{name} must be [{axes}] with {sizes}, got {list(tensor.shape)}")
