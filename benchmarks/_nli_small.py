"""A small NLI model trained from nothing, and tiny random HHEM and MiniCheck folders, for `verifier_quality.py`.

No published weights are needed. The NLI model is a BERT of three layers that sees sentences of HotpotQA / 2Wiki
knowledge and WiCE *train* sub-claims for a few minutes; it learns to compare words and little else. Rows that share a
question or eight words in a row with HaluEval are left out, because HaluEval was made from HotpotQA.
"""

from __future__ import annotations

import copy
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lexical_verifier import _NAME, read_jsonl, read_parquet, swap_entity

from hf_factuality.reading.sentences import sentence_offsets


ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
LABELS = {ENTAILMENT: "entailment", NEUTRAL: "neutral", CONTRADICTION: "contradiction"}
# (premise, claim, class)
Pair = tuple[str, str, int]
# Words of a premise, tokens of a pair, and the length of the n-grams that tell an overlap with HaluEval.
PREMISE_WORDS, MAX_LENGTH, NGRAM = 60, 128, 8
VOCABULARY = 6000
# Share of the training rows that the model does not see: thresholds and ensembles are fitted on them.
HELD_OUT = 0.3


# -- data -------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Lower case, and one space for everything that is no letter or digit."""
    return re.sub(r"\W+", " ", text.lower()).strip()


def ngrams(text: str, size: int = NGRAM) -> set[str]:
    words = plain(text).split()
    return {" ".join(words[i : i + size]) for i in range(len(words) - size + 1)}


def hotpot_rows(data: Path) -> list[dict[str, Any]]:
    """Rows of HotpotQA / 2Wiki without those that HaluEval could share: question, or eight words in a row."""
    tests = read_parquet(data / "fspo/halueval-train.parquet", ["question", "knowledge"])
    questions = {plain(row["question"]) for row in tests}
    seen = set().union(*(ngrams(row["knowledge"]) for row in tests))
    rows = read_parquet(data / "fspo/hotpot-2k-train.parquet", ["question", "answer", "knowledge"])
    return [row for row in rows if plain(row["question"]) not in questions and not seen & ngrams(row["knowledge"])]


def split(data: Path, seed: int = 0) -> dict[str, Any]:
    """Rows to train on and rows held out from training, of both sources; WiCE by article, so that none is in both."""
    generator = random.Random(seed)
    hotpot = hotpot_rows(data)
    wice = read_jsonl(data / "wice/non_supported_tokens-train.jsonl")
    articles = sorted({tuple(row["evidence"]) for row in wice})
    generator.shuffle(hotpot)
    generator.shuffle(articles)
    cut, kept = int(len(hotpot) * HELD_OUT), set(articles[: int(len(articles) * HELD_OUT)])
    return {
        "hotpot_train": hotpot[cut:],
        "hotpot_held_out": hotpot[:cut],
        "wice_train": [row for row in wice if tuple(row["evidence"]) not in kept],
        "wice_held_out": [row for row in wice if tuple(row["evidence"]) in kept],
    }


def shape(answer: str) -> tuple[str, int]:
    """Answers of one shape may stand for each other: yes or no, with a number, or so many words."""
    kind = "yes/no" if answer in ("yes", "no") else "number" if any(map(str.isdigit, answer)) else "name"
    return kind, min(len(answer.split()), 4) if kind == "name" else 0


def wrong_answer(row: dict[str, Any], answers: Sequence[str], generator: random.Random) -> str | None:
    """Another answer of the same shape: a name of the same knowledge in half of the cases, or another row's."""
    right = row["answer"]
    if right in ("yes", "no"):
        return "no" if right == "yes" else "yes"
    known = plain(f"{row['question']} {right}")
    names = sorted({name for name in _NAME.findall(row["knowledge"]) if shape(name) == shape(right)})
    options = [name for name in names if plain(name) not in known and plain(right) not in plain(name)]
    if not options or generator.random() < 0.5:
        options = [other for other in answers if shape(other) == shape(right) and plain(other) not in known]
    return generator.choice(options) if options else None


def answer_pairs(rows: Sequence[dict[str, Any]], seed: int = 0) -> list[tuple[str, str, bool]]:
    """Claim (question and answer, as for HaluEval), knowledge, and whether the answer is right; two for each row."""
    generator = random.Random(seed)
    answers = sorted({row["answer"] for row in rows})
    result = []
    for row in rows:
        wrong = wrong_answer(row, answers, generator)
        if wrong is not None:
            question = row["question"].rstrip("?")
            result += [
                (f"{question} {row['answer']}", row["knowledge"], True),
                (f"{question} {wrong}", row["knowledge"], False),
            ]
    return result


class PairMaker:
    """Endless training pairs; every draw chooses sentences, windows and swaps anew.

    Args:
        hotpot (`Sequence[dict]`):
            Rows with `question`, `answer` and `knowledge`.
        wice (`Sequence[dict]`):
            Rows with the tokens of a sub-claim that have no support.
        generator (`random.Random`):
            Source of all chances.

    Raises:
        `ValueError`: fewer than two rows have several sentences, so that none is foreign to another.
    """

    def __init__(self, hotpot: Sequence[dict], wice: Sequence[dict], generator: random.Random):
        self.generator = generator
        self.hotpot = []
        for row in hotpot:
            text = row["knowledge"]
            sentences = list(dict.fromkeys(text[a:b] for a, b in sentence_offsets(text) if 20 <= b - a <= 400))
            if len(sentences) > 1:
                self.hotpot.append((row, sentences))
        if len(self.hotpot) < 2:
            raise ValueError(f"need two rows or more with several sentences of knowledge, got {len(self.hotpot)}")
        self.wice = [row for row in wice if row["supporting_sentences"]]
        self.names = sorted({name for row, _ in self.hotpot for name in _NAME.findall(row["knowledge"])})
        self.answers = sorted({row["answer"] for row, _ in self.hotpot})

    def window(self, sentences: Sequence[str], keep: Iterable[int], words: int | None = None) -> list[int]:
        """Indices of the sentences `keep` and of others, in order, up to a random number of words."""
        chosen = set(keep)
        words = words or self.generator.randrange(15, PREMISE_WORDS)
        used = sum(len(sentences[i].split()) for i in chosen)
        for i in self.generator.sample(range(len(sentences)), len(sentences)):
            size = len(sentences[i].split())
            if i not in chosen and used + size <= words:
                chosen.add(i)
                used += size
        return sorted(chosen)

    def thinned(self, claim: str) -> str:
        """The claim, sometimes without its tail or without some of its words, so that it is no exact copy."""
        words = claim.rstrip(".").split()
        if len(words) > 8 and self.generator.random() < 0.3:
            cut = self.generator.randrange(len(words) // 2, len(words))
            words = words[:cut] if self.generator.random() < 0.7 else words[-cut:]
        if len(words) > 6 and self.generator.random() < 0.5:
            words = [word for word in words if word[:1].isupper() or self.generator.random() > 0.12]
        return " ".join(words) + "."

    def foreign(self, row: dict) -> str:
        while True:
            other, sentences = self.generator.choice(self.hotpot)
            if other is not row:
                return self.generator.choice(sentences)

    def sentence_pair(self) -> Pair | None:
        row, sentences = self.generator.choice(self.hotpot)
        first = self.generator.randrange(len(sentences))
        window = self.window(sentences, [first])
        premise = " ".join(sentences[i] for i in window)
        claim = self.thinned(sentences[first])
        if self.generator.random() < 0.2:
            claim = f"{claim[:-1]} and {self.thinned(sentences[self.generator.choice(window)])}"
        kind = self.generator.choice(("same", "same", "swap", "swap", "foreign", "outside", "half"))
        if kind == "same":
            return premise, claim, ENTAILMENT
        if kind == "swap":
            swapped = swap_entity(claim, self.names, self.generator)
            return (premise, swapped, CONTRADICTION) if swapped and swapped not in premise else None
        if kind == "foreign":
            return premise, self.thinned(self.foreign(row)), NEUTRAL
        if kind == "outside":
            rest = [text for i, text in enumerate(sentences) if i not in window and text not in premise]
            return (premise, self.thinned(self.generator.choice(rest)), NEUTRAL) if rest else None
        ours, theirs = claim[:-1].split(), self.foreign(row).split()
        return premise, " ".join(ours[: len(ours) // 2 + 1] + theirs[len(theirs) // 2 :]), NEUTRAL

    def answer_pair(self) -> Pair | None:
        row, sentences = self.generator.choice(self.hotpot)
        answer = row["answer"]
        holds = [i for i, text in enumerate(sentences) if plain(answer) in plain(text)]
        keep = [self.generator.choice(holds)] if holds else [self.generator.randrange(len(sentences))]
        words = set(plain(row["question"]).split())
        # The sentence that shares most with the question is the other half of the reasoning.
        keep.append(max(range(len(sentences)), key=lambda i: len(words & set(plain(sentences[i]).split()))))
        premise = " ".join(sentences[i] for i in self.window(sentences, keep, PREMISE_WORDS))
        right = self.generator.random() < 0.5
        said = answer if right else wrong_answer(row, self.answers, self.generator)
        if said is None:
            return None
        return premise, f"{row['question'].rstrip('?')} {said}", ENTAILMENT if right else CONTRADICTION

    def wice_pair(self) -> Pair | None:
        """A sub-claim without the words that lack support (entailed), or without as many others (neutral)."""
        row = self.generator.choice(self.wice)
        words, wrong, evidence = row["claim_tokens"], row["non_supported_spans"], row["evidence"]
        right = [i for i in range(len(words)) if not wrong[i]]
        if len(right) < max(4, sum(wrong) + 3):
            return None
        keep = {i for i in self.generator.choice(row["supporting_sentences"]) if i < len(evidence)}
        premise = " ".join(evidence[i] for i in self.window(evidence, keep, PREMISE_WORDS))
        if self.generator.random() < 0.5:
            return premise, " ".join(words[i] for i in right), ENTAILMENT
        start = self.generator.randrange(len(right))
        dropped = {right[(start + i) % len(right)] for i in range(sum(wrong))}
        return premise, " ".join(word for i, word in enumerate(words) if i not in dropped), NEUTRAL

    def draw(self, count: int) -> list[Pair]:
        """So many pairs: six of ten from sentences, three from questions and answers, one from WiCE train."""
        found: list[Pair] = []
        while len(found) < count:
            maker = self.generator.choices((self.sentence_pair, self.answer_pair, self.wice_pair), (6, 3, 1))[0]
            pair = maker()
            if pair is not None:
                found.append(pair)
        return found


# -- models -----------------------------------------------------------------------------------------------------------


def save_tokenizer(texts: Sequence[str], folder: Path, *, t5: bool = False) -> Any:
    """Lower-case BPE of the texts; with BERT's special tokens, or with T5's (`<pad>` 0, `</s>` at the end).

    Not WordPiece or Unigram, whose trainers give another vocabulary in every run.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>"] if t5 else ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    unknown = "<unk>" if t5 else "[UNK]"
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    names: dict[str, Any] = {"pad_token": special[0], "unk_token": unknown}
    if t5:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        names["eos_token"] = "</s>"
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512 if t5 else MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"] if t5 else ["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )
    fast.save_pretrained(folder)
    return fast


def new_classifier(vocabulary: int) -> Any:
    """BERT of three layers whose first attention looks for equal words.

    Queries and keys of that layer start as the identity, and word embeddings larger than those of positions: what is to
    be learned in minutes is what to make of a match, not how to find one.
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=192,
        max_position_embeddings=MAX_LENGTH,
        id2label=LABELS,
        label2id={name: index for index, name in LABELS.items()},
        hidden_dropout_prob=0.05,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.mul_(4.0)
        attention = model.bert.encoder.layer[0].attention.self
        for linear in (attention.query, attention.key):
            linear.weight.copy_(1.2 * torch.eye(config.hidden_size))
    return model


def encode(tokenizer: Any, pairs: Sequence[Pair]) -> Any:
    return tokenizer(
        [premise for premise, *_ in pairs],
        [claim for _, claim, _ in pairs],
        truncation="longest_first",
        max_length=MAX_LENGTH,
        padding=True,
        return_tensors="pt",
    )


def held_out_accuracy(model: Any, tokenizer: Any, rows: dict[str, Any], seed: int = 0, count: int = 1000) -> float:
    """Share of pairs of the trained kinds, made from held-out rows, that get the right one of three classes."""
    import torch

    pairs = PairMaker(rows["hotpot_held_out"], rows["wice_held_out"], random.Random(seed + 1)).draw(count)
    right = 0
    with torch.inference_mode():
        for i in range(0, count, 50):
            part = pairs[i : i + 50]
            truth = torch.tensor([label for *_, label in part])
            right += int((model(**encode(tokenizer, part)).logits.argmax(-1) == truth).sum())
    return right / count


def train_nli(
    data: Path, folder: Path, *, steps: int = 800, batch: int = 32, seed: int = 0, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train the model and save it with its tokenizer.

    Args:
        data (`Path`):
            Folder with `wice/` and `fspo/`.
        folder (`Path`):
            Where the model goes.
        steps (`int`, *optional*, defaults to `800`):
            Optimiser steps.
        batch (`int`, *optional*, defaults to `32`):
            Pairs in a step.
        seed (`int`, *optional*, defaults to `0`):
            Of the rows, the pairs and the weights.
        log (`Callable`, *optional*, defaults to `print`):
            Gets a line now and then.

    Returns:
        `dict[str, Any]`: numbers of rows and parameters, the seconds it took, and the share of held-out pairs of the
        same kinds that get the right class.
    """
    import torch

    start = time.perf_counter()
    rows = split(data, seed)
    maker = PairMaker(rows["hotpot_train"], rows["wice_train"], random.Random(seed))
    texts = [row["knowledge"] for row in rows["hotpot_train"]]
    texts += [text for row in rows["wice_train"] for text in row["evidence"]]
    tokenizer = save_tokenizer(texts, folder)
    torch.manual_seed(seed)
    model = new_classifier(len(tokenizer)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)

    total = 0.0
    block: list[list[Pair]] = []
    for step in range(1, steps + 1):
        if not block:  # batches of like length
            pairs = sorted(maker.draw(batch * 16), key=lambda pair: len(pair[0]) + len(pair[1]))
            block = [pairs[i : i + batch] for i in range(0, len(pairs), batch)]
            maker.generator.shuffle(block)
        pairs = block.pop()
        loss = model(**encode(tokenizer, pairs), labels=torch.tensor([label for *_, label in pairs])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.item()
        if step % 100 == 0 or step == steps:
            log(f"step {step}: loss {total / (step % 100 or 100):.3f}, {time.perf_counter() - start:.0f} s")
            total = 0.0
    model.eval().save_pretrained(folder)
    return {
        **{name: len(found) for name, found in rows.items()},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": steps,
        "seconds": round(time.perf_counter() - start),
        "held_out_accuracy": held_out_accuracy(model, tokenizer, rows, seed),
    }


def save_random_t5(texts: Sequence[str], folder: Path, seed: int = 0) -> dict[str, str]:
    """Folders that `HHEMJudge` and `MiniCheckJudge` load, with random weights: they prove the path and nothing else.

    Returns:
        `dict[str, str]`: `hhem`, `foundation` and `minicheck`.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import T5Config, T5ForConditionalGeneration, T5ForTokenClassification

    tokenizer = save_tokenizer(texts, folder / "foundation", t5=True)
    config = T5Config(
        vocab_size=max(len(tokenizer), 256),  # MiniCheck answers with id 209
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
        tie_word_embeddings=False,
    )
    config.save_pretrained(folder / "foundation")
    torch.manual_seed(seed)
    config.num_labels = 2
    weights = T5ForTokenClassification(copy.deepcopy(config)).state_dict()  # it makes its configuration an encoder
    state = {
        f"t5.{name}": value.clone() for name, value in weights.items() if not name.endswith("embed_tokens.weight")
    }
    (folder / "hhem").mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "hhem" / "model.safetensors", metadata={"format": "pt"})
    T5ForConditionalGeneration(config).save_pretrained(folder / "minicheck")
    tokenizer.save_pretrained(folder / "minicheck")
    return {name: str(folder / name) for name in ("hhem", "foundation", "minicheck")}
