"""A small policy and a small reward model with different tokenizers, for the example of token reward models.

The policy writes reviews of a meal and complains as often as it praises. The reward model marks the words that praise and
those that complain; which a word does depends on what was served: warm bread is praise, warm beer is not. An exact reader of
such reviews says what the reward model cannot be asked: whether what the policy writes then is still a review.

All reviews have as many sentences. Where the length is free and praise is paid for, a policy writes ever more; where only
complaints cost, it soon writes nothing.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_factuality.errors import CheckpointError
from hf_factuality.hub.results import measured_entry
from hf_factuality.hub.tables import NOISE, before_and_after, format_table
from hf_factuality.io.files import whole_folder


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


# Dish: what praises it, what complains of it.
DISHES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(praise.split()), frozenset(complaint.split()))
    for name, praise, complaint in [
        ("soup", "hot rich", "cold thin"),
        ("beer", "cold crisp", "warm flat"),
        ("bread", "warm soft", "dry stale"),
        ("salad", "crisp fresh", "soft warm"),
        ("steak", "tender hot", "tough cold"),
        ("tea", "hot fresh", "cold thin"),
        ("wine", "dry rich", "warm thin"),
        ("cake", "soft rich", "dry stale"),
        ("crème brûlée", "crisp cold", "soft warm"),
    ]
}
ADJECTIVES = sorted({word for praise, complaint in DISHES.values() for word in praise | complaint})
COLOURS = "Blue Red Green Golden Silver White Black Old Little Crooked".split()
THINGS = "Door Lion Anchor Bridge Garden Mill Lantern Oak Rose Swan".split()
PLACES = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
SENTENCES = 3
POLICY_BATCH, REWARD_BATCH = 64, 32
PAD, EOS = "<pad>", "<eos>"
_SENTENCE = re.compile(
    rf"(?:The|Our) ({'|'.join(DISHES)}) (?:was|came) ({'|'.join(ADJECTIVES)})(?: and ({'|'.join(ADJECTIVES)}))?\."
)


class Review(NamedTuple):
    """What an exact reader finds in a review.

    `ends` are, for each word that praises or complains, one past its last character, and 1 or -1; a well-formed review
    consists of three sentences, in each of which every adjective can be said of the dish.
    """

    praise: int
    complaints: int
    ends: list[tuple[int, int]]
    well_formed: bool


def read_review(text: str) -> Review:
    """The praise and the complaints of a review, by its grammar and not by any model."""
    matches, ends = list(_SENTENCE.finditer(text)), []
    for match in matches:
        praise, complaint = DISHES[match[1]]
        for group in (2, 3):
            if match[group] in praise | complaint:
                ends.append((match.end(group), 1 if match[group] in praise else -1))
    known = sum(len(re.findall(rf"\b(?:{'|'.join(ADJECTIVES)})\b", match[0])) for match in matches)
    rest = _SENTENCE.sub("", text).strip()
    good = sum(sign > 0 for _, sign in ends)
    return Review(good, len(ends) - good, ends, not rest and known == len(ends) and len(matches) == SENTENCES)


def request(place: str) -> str:
    """The prompt."""
    return f"A guest of the {place} writes:"


def _any_request(rng: random.Random) -> str:
    return request(f"{rng.choice(COLOURS)} {rng.choice(THINGS)}")


def write_review(rng: random.Random, free: float = 0.0) -> str:
    """A review, about half of whose sentences complain; a share `free` of its words may say anything of any dish."""
    sentences = []
    for _ in range(SENTENCES):
        dish = rng.choice(list(DISHES))
        words = sorted(rng.choice(DISHES[dish]))
        said = [
            rng.choice(ADJECTIVES) if rng.random() < free else word for word in rng.sample(words, rng.randint(1, 2))
        ]
        sentences.append(f" {rng.choice(['The', 'Our'])} {dish} {rng.choice(['was', 'came'])} {' and '.join(said)}.")
    return "".join(sentences)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """The policy's: a token is a word with the space before it, or a mark."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    texts = [*map(request, PLACES)]
    texts += [f" {word}" for word in ["The", "Our", "was", "came", "and", ".", *ADJECTIVES, *DISHES]]
    unit = r" ?\w+|[^\w\s]"
    pieces = dict.fromkeys([PAD, EOS, *(piece for text in texts for piece in re.findall(unit, text))])
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(unit), "isolated")
    backend.decoder = decoders.Fuse()
    return _fast(backend, padding_side="left")


def byte_tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    """The reward model's: byte-level BPE with so few entries that words fall into pieces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((write_review(rng) for _ in range(500)), trainer)
    return _fast(backend, model_max_length=160)


def _fast(backend: Any, **options: Any) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False, **options
    )


def train_policy(folder: Path, rng: random.Random, steps: int) -> None:
    """A language model that writes reviews, from scratch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = word_tokenizer()
    config = LlamaConfig(**_size(tokenizer), max_position_embeddings=128, tie_word_embeddings=True)
    model = LlamaForCausalLM(config)

    def loss():
        texts = [_any_request(rng) for _ in range(POLICY_BATCH)]
        batch = tokenizer([text + write_review(rng) + EOS for text in texts], padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return model(**inputs, labels=labels, use_cache=False).loss

    _train(model, tokenizer, loss, steps, folder)


def train_reward_model(folder: Path, rng: random.Random, steps: int) -> None:
    """A token classifier that scores 1 where a word of praise ends, -1 where one of complaint ends, and 0 elsewhere."""
    import torch
    from transformers import Qwen2Config, Qwen2ForTokenClassification

    tokenizer = byte_tokenizer(rng)
    config = Qwen2Config(**_size(tokenizer), num_key_value_heads=4, max_position_embeddings=160, num_labels=1)
    model = Qwen2ForTokenClassification(config)

    def loss():
        texts = [write_review(rng, free=0.3) for _ in range(REWARD_BATCH)]
        heads = [_any_request(rng) for _ in texts]
        whole = [head + text for head, text in zip(heads, texts, strict=True)]
        batch = tokenizer(whole, padding=True, return_tensors="pt", return_offsets_mapping=True)
        targets = torch.zeros(batch["input_ids"].shape)
        for row, (head, text) in enumerate(zip(heads, texts, strict=True)):
            labels = {len(head) + end: sign for end, sign in read_review(text).ends}
            for column, (start, end) in enumerate(batch["offset_mapping"][row].tolist()):
                if start < end:
                    targets[row, column] = labels.get(end, 0)
        mask = batch["attention_mask"]
        scores = model(input_ids=batch["input_ids"], attention_mask=mask).logits[:, :, 0]
        return ((scores - targets) ** 2 * mask).sum() / mask.sum() * 10

    _train(model, tokenizer, loss, steps, folder)


def _size(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "initializer_range": 0.1, "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip


def _train(model: PreTrainedModel, tokenizer: Any, loss: Callable[[], Any], steps: int, folder: Path) -> None:
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 30) * (1 - step / steps) + 1e-3
    )
    for _ in range(steps):
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


_BETTER = {"score": True, "praise": True, "complaints": False, "well_formed": True, "words": None}


class ReviewDemo:
    """A policy that writes reviews, a reward model that reads them, requests, and the measurement before and after.

    The two models are made beside `output_dir`, in `{output_dir}-start`, and found there by the next run.
    """

    metrics: Mapping[str, str] = {
        "score": "reward per review, summed over its tokens",
        "praise": "words of praise per review",
        "complaints": "words of complaint per review",
        "well_formed": "reviews that are reviews",
        "words": "words per review",
    }
    setting = (
        "Reviews of places held out from training, ten each at temperature 1; all but the score are read exactly."
    )
    steps = 300
    max_new_tokens = 48
    samples = 10

    def __init__(self, output_dir: str):
        import torch
        from accelerate import PartialState
        from datasets import Dataset

        # A model this small gains next to nothing from a second thread, and loses a lot where cores are shared.
        torch.set_num_threads(1)
        folder = Path(f"{Path(output_dir)}-start")
        with PartialState().main_process_first():
            self.model_dir = _made(folder / "policy", train_policy, self.steps)
            self.reward_model_dir = _made(folder / "reward-model", train_reward_model, self.steps)
        places = list(PLACES)
        random.Random(0).shuffle(places)
        self.train_dataset, self.test_dataset = (
            Dataset.from_dict({"prompt": [request(place) for place in part]}) for part in (places[:80], places[80:])
        )
        self._found: dict[str, dict[str, float]] = {}
        self._items: dict[str, dict[str, list[float]]] = {}

    def measure(self, name: str, trainer: Any, reward: Callable[..., Sequence[Any]]) -> None:
        """Let the trainer's model answer the held-out requests; `name` is `"before"` or `"after"`."""
        import torch

        model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
        prompts = [prompt for prompt in self.test_dataset["prompt"] for _ in range(self.samples)]
        batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt").to(model.device)
        training = model.training
        # Measuring leaves the random numbers of the run alone.
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))), torch.no_grad():
            torch.manual_seed(0)
            ids = model.eval().generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, top_k=0,
                max_new_tokens=self.max_new_tokens, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        model.train(training)
        texts = tokenizer.batch_decode(ids[:, batch["input_ids"].size(1) :], skip_special_tokens=True)
        reviews = [read_review(text) for text in texts]
        paid = reward(prompts=prompts, completion_texts=texts)
        keys = ("praise", "complaints", "well_formed")
        items: dict[str, list[float]] = {
            "score": [sum(value for *_, value in spans) for spans in paid if spans is not None],
            **{key: [float(getattr(review, key)) for review in reviews] for key in keys},
            "words": [float(len(text.split())) for text in texts],
        }
        self._items[name] = items
        self._found[name] = {"n": len(texts), **{key: sum(own) / max(len(own), 1) for key, own in items.items()}}
        trainer.accelerator.print(f"{name.capitalize()} training: {prompts[0]}{texts[0]}")

    def report(self, output_dir: str) -> None:
        """Print the table and write `before-and-after.json`."""
        from accelerate import PartialState

        if not PartialState().is_main_process:
            return
        before, after = self._found["before"], self._found["after"]
        table = before_and_after(self._entries("before"), self._entries("after"))
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        record = {"setting": self.setting, "before": before, "after": after}
        (folder / "before-and-after.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        print(f"\n{format_table(table)}\n\n{NOISE}\n{self.setting}\n")

    def _entries(self, name: str) -> list[dict[str, Any]]:
        """Entries of results, with intervals over the reviews."""
        how: dict[str, Any] = {"dataset": {}, "generation": {}}
        return [
            measured_entry(
                "reviews", key, [(it, 1.0) for it in self._items[name][key]], title=title, higher_is_better=_BETTER[key], **how
            )
            for key, title in self.metrics.items()
        ]  # fmt: skip


def _made(folder: Path, train: Callable[[Path, random.Random, int], None], steps: int) -> str:
    """The model in this folder, trained first if it is not there; written under another name until it is complete."""
    import torch

    if not (folder / "config.json").is_file():
        print(f"Training a small model from scratch, {steps} steps: {folder}")
        try:
            with whole_folder(folder) as partial, torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                train(partial, random.Random(0), steps)
        except OSError as error:
            raise CheckpointError(f"cannot write the model to {folder}: {error}; choose another output_dir") from error
    return str(folder)
