"""From a model name to files on disk: default model, local folder, GGUF file or Hub id."""

import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from safetensors import SafetensorError, safe_open

from ckv_core.errors import ModelError, first_line
from ckv_core.models.catalog import WHAT_CAN_BE_GIVEN, local_path
from ckv_core.models.default_model import hub_snapshot, prepare_default_model
from ckv_core.models.steps import STALL_S, Report, Step
from ckv_core.records.run_request import DEFAULT_MODEL

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    folder: Path  # holds config and tokenizer
    # Name of the GGUF file in it, or None where the weights are safetensors.
    gguf: str | None = None
    converted_from: str | None = None  # SHA-256 of the GGUF file that the folder was made from

    @property
    def nbytes(self) -> int:
        files = [self.folder / self.gguf] if self.gguf is not None else self.weights()
        return sum(path.stat().st_size for path in files)

    def weights(self) -> list[Path]:
        """The safetensors files that transformers will read."""
        return sorted(
            path
            for path in self.folder.glob("model*.safetensors")
            if path.name == "model.safetensors" or re.search(r"-\d+-of-\d+\.", path.name)
        )


def find_checkpoint(name: str, report: Report, *, with_weights: bool) -> Checkpoint:
    """Find a model's files, preparing or downloading what is not there yet.

    Args:
        name: the default name, a local path, a folder under CKV_HOME/models, or a Hub id.
        report: called with each step.
        with_weights: False fetches config and tokenizer only, where that is cheaper.

    Raises:
        ModelError: unknown name, missing files, or a Hub that does not hand them out.
    """
    if (given := name.strip()) == DEFAULT_MODEL:
        return Checkpoint(given, prepare_default_model(report))
    if (local := local_path(given)) is not None:
        return _local_checkpoint(given, local)
    return _hub_checkpoint(given, report, with_weights=with_weights)


def check_folder(name: str, folder: Path, *, with_weights: bool = True) -> None:
    """Name everything that a folder lacks or has damaged, and refuse pickles: ModelError."""
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{name!r} is an adapter (LoRA), not a model: merge it into its base model "
            "(merge_and_unload in peft), save that and give its folder."
        )
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        missing.append("the tokenizer (tokenizer.json)")
    weights = Checkpoint(name, folder).weights() if with_weights else []
    if with_weights:
        if not weights and any(next(folder.glob(pattern), None) for pattern in _PICKLES):
            raise ModelError(
                f"{name!r} has only pickled weights (.bin, .pt), which can run code when opened; "
                "convert them to safetensors or choose another model."
            )
        there = {path.name for path in weights}
        totals = {
            found[1] for found in (re.search(r"-of-(\d+)\.", each) for each in there) if found
        }
        shards = [f"model-{n:05d}-of-{t}.safetensors" for t in totals for n in range(1, int(t) + 1)]
        missing += [shard for shard in shards if shard not in there]
        if shards and not (folder / "model.safetensors.index.json").is_file():
            missing.append("model.safetensors.index.json")
        if not weights:
            missing.append("the weights (model.safetensors)")
    if missing:
        raise ModelError(
            f"{name!r} is incomplete: {', '.join(missing)} missing. Copy or download it again."
        )
    for path in weights:  # of a file that was cut short the header shows it
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path.name} of {name!r} is damaged or cut short; copy or download it again."
            ) from error


def _local_checkpoint(given: str, path: Path) -> Checkpoint:
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{given!r} is neither a folder nor a GGUF file. {WHAT_CAN_BE_GIVEN}")
        return Checkpoint(given, path.parent.absolute(), path.name)
    folder = path.absolute()
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if ggufs and not Checkpoint(given, folder).weights():
        if len(ggufs) > 1:
            raise ModelError(
                f"{given!r} holds several GGUF files; give the path of one: {', '.join(ggufs)}."
            )
        return Checkpoint(given, folder, ggufs[0])
    check_folder(given, folder)
    return Checkpoint(given, folder)


def _hub_checkpoint(hub_id: str, report: Report, *, with_weights: bool) -> Checkpoint:
    if with_weights:
        sentence = f"Fetching {hub_id} from the Hugging Face Hub or its local cache."
        report(Step(sentence, limit_s=STALL_S))
    try:
        snapshot = hub_snapshot(hub_id, report, with_weights=with_weights)
    except GatedRepoError as error:
        raise ModelError(
            f"{hub_id!r} is gated: accept its licence on huggingface.co and set HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"The Hugging Face Hub has no model {hub_id!r}, or it is private: check the spelling, "
            "or set HF_TOKEN."
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"The Hugging Face Hub cannot be reached and {hub_id!r} is not in its local cache. "
            f"Connect to a network, or give {DEFAULT_MODEL} or a local folder."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"{hub_id!r} could not be downloaded ({first_line(error)}); try again."
        ) from error
    check_folder(hub_id, snapshot, with_weights=with_weights)
    return Checkpoint(hub_id, snapshot)
