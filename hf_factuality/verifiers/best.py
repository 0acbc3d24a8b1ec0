"""`--verifier best`: the strongest published verifier that fits the memory at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass


# Above the weights: a tenth for what a loaded model holds besides, and what the pass of a batch and torch itself take. On a CPU
# passes are small; on a GPU the largest is FactCG's, 16 chunks of 768 tokens, 2.3 GB.
_ROOM = 1.1
_WORKING_BYTES = {"GPU": 3_000_000_000, "RAM": 1_000_000_000}


@dataclass(frozen=True)
class PublishedWeights:
    """A verifier with published weights.

    Args:
        name (`str`):
            For [`~hf_factuality.verifiers.load_verifier`].
        model (`str`):
            Its weights on the Hub.
        parameters (`int`):
            How many are loaded.
        balanced_accuracy (`float`):
            Mean over the sets of LLM-AggreFact, as published, in percent.
        licence (`str`):
            Of the weights.
        bytes_on_cpu (`int`, *optional*, defaults to `4`):
            Of a parameter on a CPU: 4 in float32. On a GPU it is 2.
        remote_code (`bool`, *optional*, defaults to `False`):
            Whether its repository holds code that must run: it is taken only with `trust_remote_code=True`.
    """

    name: str
    model: str
    parameters: int
    balanced_accuracy: float
    licence: str
    bytes_on_cpu: int = 4
    remote_code: bool = False

    def needs(self, on_gpu: bool) -> int:
        """Bytes of memory that judging takes."""
        size = self.parameters * (2 if on_gpu else self.bytes_on_cpu)
        return int(size * _ROOM) + _WORKING_BYTES["GPU" if on_gpu else "RAM"]


# Balanced accuracies by the leaderboard of LLM-AggreFact (llm-aggrefact.github.io), as public pages quote it. It says HHEM-2.1,
# which need not be the open version.
PUBLISHED_WEIGHTS: tuple[PublishedWeights, ...] = (
    PublishedWeights(
        "minicheck:bespokelabs/Bespoke-MiniCheck-7B", "bespokelabs/Bespoke-MiniCheck-7B", 7_740_000_000, 77.4,
        "CC BY-NC 4.0", bytes_on_cpu=2, remote_code=True,
    ),
    PublishedWeights("factcg", "yaxili96/FactCG-DeBERTa-v3-Large", 435_000_000, 75.6, "MIT"),
    PublishedWeights("minicheck", "lytang/MiniCheck-Flan-T5-Large", 783_000_000, 75.0, "MIT"),
    PublishedWeights("hhem", "vectara/hallucination_evaluation_model", 110_000_000, 71.8, "Apache 2.0"),
)  # fmt: skip
"""Strongest first."""


def free_memory() -> tuple[int, str]:
    """Bytes that are free on the GPU if there is one, else in this machine, and which: `"GPU"` or `"RAM"`."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0], "GPU"
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # what may be freed counts too
            sizes = dict(line.split(":", 1) for line in file)
        return int(sizes["MemAvailable"].split()[0]) * 1024, "RAM"
    except (OSError, KeyError, ValueError):
        return _physical_memory(), "RAM"


def _physical_memory() -> int:
    """Of this machine, where it cannot be told how much is free."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        return 8_000_000_000


class WeightsAtHand:
    """Says of a model on the Hub whether its weights can be had: `"cached"`, `"on the Hub"`, or `""` if they can not.

    Where nothing is cached the Hub is asked once, without its client's retries, for at most `timeout` seconds; if it does not
    answer, it is not asked about further models.
    """

    def __init__(self, timeout: float = 5.0):
        self._timeout, self._answers = timeout, True

    def __call__(self, model: str) -> str:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        weights = ("*.safetensors", "*.bin")
        try:
            folder = snapshot_download(model, allow_patterns=weights, local_files_only=True)
            if any(name.endswith((".safetensors", ".bin")) for _, _, names in os.walk(folder) for name in names):
                return "cached"
        except (OSError, LocalEntryNotFoundError):
            pass
        if not self._answers:
            return ""
        try:
            get_hf_file_metadata(hf_hub_url(model, "config.json"), timeout=self._timeout)
        except HfHubHTTPError:  # it answers, and does not give this model
            return ""
        except Exception:  # of the network, in classes of httpx or httpx2; offline mode, which asks nobody
            self._answers = False
            return ""
        return "on the Hub"


def best_verifier(
    *,
    memory: int | None = None,
    on_gpu: bool = False,
    trust_remote_code: bool = False,
    have: Callable[[str], str] | None = None,
    published: Sequence[PublishedWeights] = PUBLISHED_WEIGHTS,
) -> tuple[PublishedWeights | None, str]:
    """The strongest verifier that fits, and one line that says why; `None` if none does, or no weights can be had.

    Args:
        memory (`int`, *optional*):
            Bytes to fit into. `None`: what [`free_memory`] finds, which then says `on_gpu` too.
        on_gpu (`bool`, *optional*, defaults to `False`):
            Whether weights are in bfloat16 instead of float32.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether verifiers that run code of their repository may be taken.
        have (`Callable`, *optional*):
            Says of a model whether its weights can be had; [`WeightsAtHand`] by default.
        published (`Sequence[PublishedWeights]`, *optional*):
            What there is to choose from, strongest first.
    """
    kind = "GPU" if on_gpu else "RAM"
    if memory is None:
        memory, kind = free_memory()
        on_gpu = kind == "GPU"
    have = have or WeightsAtHand()
    left: list[str] = []
    for it in published:
        needs = it.needs(on_gpu)
        if needs > memory:
            left.append(f"{it.name} needs {needs / 1e9:.1f} GB")
        elif it.remote_code and not trust_remote_code:
            left.append(f"{it.name} runs code of its repository, which trust_remote_code=True allows")
        elif not (where := have(it.model)):
            left.append(f"{it.name} is neither cached nor can the Hub be reached")
        else:
            chosen = (
                f"took {it.name!r} ({it.model}, {where}): balanced accuracy {it.balanced_accuracy} on LLM-AggreFact, needs "
                f"{needs / 1e9:.1f} of {memory / 1e9:.1f} GB free {kind}"
            )
            return it, chosen + (f". Stronger ones: {'; '.join(left)}" if left else "")
    words = f"took 'small', whose weights are in the package; there are {memory / 1e9:.1f} GB of free {kind}"
    return None, f"{words}. Stronger ones: {'; '.join(left)}"
