"""Checks a config against the weights' own shapes, and the weights against their hashes. No torch.

A config says how many modules and numbers are made: one that lies would fill the memory, or hold
its process for hours. Weights may have changed since they were published, converted or loaded.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from math import prod
from typing import Any

from safetensors import safe_open

from ckv_core.errors import ModelError
from ckv_core.models.checkpoint import Checkpoint
from ckv_core.models.store import MANIFEST_NAME, combine, file_hashes, hashes_before, read_manifest

Shapes = Mapping[str, tuple[int, ...]]

MAX_CONFIG_BYTES = 16 * 2**20
MAX_LAYERS = 2_000  # ten times the deepest that is known
MAX_SIZE = 2**30
_LAYER = re.compile(r"^(.*?)(?:layers|h|blocks|blk)\.(\d+)\.")
_SIZE = re.compile(r"^(num|n)_|_size$|_dim$|^d_model$")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "token_embd.weight")


def check_sizes(checkpoint: Checkpoint, shapes: Shapes) -> None:
    """Refuse a config whose layers, width or vocabulary are not those of the weights: ModelError.

    Without shapes, as of weights that are not fetched yet, only what no model can have is.
    """
    name = checkpoint.name
    settings = _settings(checkpoint)
    for config in (settings, *(part for part in settings.values() if isinstance(part, dict))):
        for key, value in config.items():
            most = MAX_LAYERS if key in _LAYERS else MAX_SIZE
            if isinstance(value, int) and _SIZE.search(key) and value > most:
                # Python refuses to write out a number of thousands of digits.
                shown = f"{value:,}" if value.bit_length() < 128 else "of more than 38 digits"
                raise ModelError(
                    f"The config of {name!r} has {key} {shown}, more than the {most:,} "
                    "that any model has; check its files or choose another model."
                )
    if shapes:
        _check_layers(checkpoint, shapes)
        _check_embedding(checkpoint, shapes)


def check_parameters(checkpoint: Checkpoint, shapes: Shapes, parameters: int) -> None:
    """Refuse a config after which over twice as many numbers would be made as the weights hold.

    What is lacking beyond that is named when it is loaded; this is against filling the memory.
    `parameters` counts tied ones once.
    """
    stored = sum(prod(shape) for shape in shapes.values())
    if parameters > 2 * stored:
        raise ModelError(
            f"The weights of {checkpoint.name!r} do not match its config: that asks for "
            f"{parameters:,} numbers and they hold {stored:,}. Download the model again."
        )


def weight_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor by its name, from the files' headers; empty if there are no weights."""
    if checkpoint.gguf is not None:
        return {
            str(tensor.name): tuple(int(size) for size in tensor.shape)
            for tensor in _gguf_reader(checkpoint).tensors
        }
    shapes = {}
    for path in checkpoint.weights():
        with safe_open(path, framework="numpy") as file:
            for key in file.keys():  # noqa: SIM118 - no mapping
                shapes[key] = tuple(file.get_slice(key).get_shape())
    return shapes


def _check_layers(checkpoint: Checkpoint, shapes: Shapes) -> None:
    text = _text(_settings(checkpoint))
    declared = next((text[key] for key in _LAYERS if isinstance(text.get(key), int)), None)
    found: dict[str, set[int]] = defaultdict(set)
    for key in shapes:
        if match := _LAYER.match(key):
            found[match[1]].add(int(match[2]))
    counts = sorted({len(numbers) for numbers in found.values()})
    if declared is None or not counts:
        return
    # Layers that predict further tokens stand behind the others, and the model has no use of them.
    more = text.get("num_nextn_predict_layers", 0)
    more = more if isinstance(more, int) else 0
    if not any(count - more <= declared <= count for count in counts):
        raise ModelError(
            f"The config of {checkpoint.name!r} says {declared:,} layers and the weights hold "
            f"{' or '.join(f'{count:,}' for count in counts)}; download the model again or choose "
            "another one."
        )


def _check_embedding(checkpoint: Checkpoint, shapes: Shapes) -> None:
    text = _text(_settings(checkpoint))
    width = next((text[key] for key in _WIDTHS if isinstance(text.get(key), int)), None)
    rows = text.get("vocab_size")
    tables = [sorted(shape) for key, shape in shapes.items() if key.endswith(_EMBEDDINGS)]
    for what, size in (("hidden size", width), ("vocabulary", rows)):
        if isinstance(size, int) and tables and not any(size in table for table in tables):
            raise ModelError(
                f"The config of {checkpoint.name!r} says a {what} of {size:,} and the weights' "
                f"embedding is {' x '.join(f'{each:,}' for each in tables[0])}; download the model "
                "again or choose another one."
            )


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    if checkpoint.gguf is not None:
        wanted, found = {"block_count": _LAYERS[0], "embedding_length": _WIDTHS[0]}, {}
        for key, field in _gguf_reader(checkpoint).fields.items():
            name = wanted.get(key.rpartition(".")[2])
            if name is not None and key.count(".") == 1:
                value = field.contents()
                found[name] = int(value) if isinstance(value, int | float) else value
        return found
    path = checkpoint.folder / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelError(
                f"The config of {checkpoint.name!r} is larger than any model's; choose another one."
            )
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"The config of {checkpoint.name!r} cannot be read ({type(error).__name__}); copy or "
            "download it again."
        ) from error
    if not isinstance(settings, dict):
        raise ModelError(f"The config of {checkpoint.name!r} is no JSON object; download it again.")
    return settings


def _gguf_reader(checkpoint: Checkpoint) -> Any:
    from gguf import GGUFReader  # noqa: PLC0415 - half a second, and few models are GGUF files

    try:
        return GGUFReader(checkpoint.folder / str(checkpoint.gguf))
    except Exception as error:  # it raises what NumPy and struct do
        raise ModelError(
            f"{checkpoint.gguf} of {checkpoint.name!r} is damaged or cut short "
            f"({type(error).__name__}); copy or download it again."
        ) from error


def _text(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the decoder; models with a picture tower nest it."""
    nested = settings.get("text_config")
    return nested if isinstance(nested, dict) else settings


def checked_sha256(checkpoint: Checkpoint) -> str:
    """One hash over the weights files; of a converted GGUF that file's.

    A file is read once; it counts as the same while path, size, time and inode are. ModelError
    where it holds other bits than it should.
    """
    if checkpoint.converted_from is not None:  # its folder was compared when it was found
        return checkpoint.converted_from
    files = checkpoint.weights()
    before = hashes_before(files)
    hashes = file_hashes(files)
    sha256 = combine(hashes)
    for path in files:
        # The Hub's cache names a large file after its hash.
        blob = path.resolve()
        published = blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name)
        if published and blob.name != hashes[path.name]:
            raise ModelError(
                f"{path.name} of {checkpoint.name!r} is damaged in the Hub's cache: its SHA-256 is "
                f"not the published one. Delete {blob} and load the model again."
            )
    manifest = read_manifest(checkpoint.folder)
    if manifest is not None and manifest.sha256 != sha256:
        raise ModelError(
            f"The weights of {checkpoint.name!r} are not those of its {MANIFEST_NAME}; copy the "
            "model again, or delete that file if you changed them."
        )
    changed = [
        path.name for path in files if before.get(path.name, "") not in ("", hashes[path.name])
    ]
    if changed:
        raise ModelError(
            f"The weights of {checkpoint.name!r} are not those that were loaded here before "
            f"({changed[0]} changed). If you replaced them, load the model once more; else copy or "
            "download it again."
        )
    return sha256
