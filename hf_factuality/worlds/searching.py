"""A closed world that is searched: current, outdated and contradicting passages about people, and a small policy that calls a tool.

A passage speaks of one person and begins with its source: "2020: Brovward lives in Meldstead." is current, "1990: ..." outdated,
"Rumour: ..." somebody's word. What the newest passage says is so; where there is none, nobody can know, and declining is right. The
policy's texts are a careless teacher's about people of no world: it searches or guesses, takes any passage for true, and cites the
right one, another one, all or none, so that reinforcement learning finds better and worse habits to choose from.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hf_factuality.io.files import cache_folder, whole_folder
from hf_factuality.io.tool_results import NOTHING_FOUND
from hf_factuality.reading.completion import without_citations
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.retrieval.corpus import CorpusRetriever
from hf_factuality.retrieval.environment import SearchEnvironment
from hf_factuality.retrieval.knowledge import KnowledgeBase
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.worlds.language import LANGUAGES


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast


VERSION = 3
"""Part of the name of the folder of the policy."""
CURRENT, OUTDATED, RUMOUR = "2020", "1990", "Rumour"
SOURCES = (CURRENT, OUTDATED, RUMOUR)
RELATIONS = {"home": "lives in", "work": "works for"}
_UNKNOWN = {"home": "where {name} lives", "work": "where {name} works"}
TOKENS = 160
"""Tokens of a rollout, at most."""
MOST_CALLS, MOST_PASSAGES = 3, 4

PAD, BOS, EOS, UNK, USER, ASSISTANT, TOOL = "<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>", "<tool>"
_CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '<user>' + m['content'] }}"
    "{% elif m['role'] == 'tool' %}{{ '<tool>' + m['content'] }}"
    "{% else %}{{ '<assistant>' }}{% generation %}{{ m['content'] or '' }}"
    "{% for call in m['tool_calls'] or [] %}{{ '<call>' + call['function']['name'] }}"
    "{% for key, value in call['function']['arguments'].items() %}{{ ' ' + key + ' ' + value }}{% endfor %}{{ '</call>' }}"
    "{% endfor %}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
_RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open": "<call>search query ", "close_pattern": r"</call>\s*", "repeats": True, "content": "text",
            "transform": {"type": "function", "function": {"name": "search", "arguments": {"query": "{content}"}}},
        },
        "content": {"close_pattern": r"<eos>\s*", "content": "text"},
    },
}  # fmt: skip


@dataclass(frozen=True)
class SearchWorldConfig:
    """Size of a searched world, and how its policy is made.

    Args:
        num_people (`int`, *optional*, defaults to 120), num_values (`int`, *optional*, defaults to 10):
            People with passages, and towns and employers (each so many).
        current, outdated, rumoured (`float`, *optional*, default to 0.8, 0.6 and 0.5):
            How often a passage of each kind is there, by person and relation.
        steps (`int`, *optional*, defaults to 1000), batch_size (`int`, *optional*, defaults to 32):
            Of the policy's supervised training.
        hidden_size (`int`, *optional*, defaults to 64), num_layers (`int`, *optional*, defaults to 2):
            Of the policy.
        seed (`int`, *optional*, defaults to 0):
            Names, facts, passages and weights.
        split_seed (`int`, *optional*, defaults to 0):
            Who is held out.
    """

    num_people: int = 120
    num_values: int = 10
    current: float = 0.8
    outdated: float = 0.6
    rumoured: float = 0.5
    steps: int = 1000
    batch_size: int = 32
    hidden_size: int = 64
    num_layers: int = 2
    seed: int = 0
    split_seed: int = 0


@dataclass(frozen=True)
class SearchStatement:
    """A sentence of a policy, read.

    Args:
        start, end (`int`):
            Its characters.
        relation (`str`):
            What it is about, a key of [`RELATIONS`].
        name (`str`):
            Of whom.
        value (`str`, *optional*):
            What it states; `None` where it says that nobody knows.
    """

    start: int
    end: int
    relation: str
    name: str
    value: str | None


class SearchWorld:
    """People, facts and passages, all a function of the configuration.

    Attributes:
        people (`tuple[str, ...]`): Names.
        passages (`dict[str, list[str]]`): Name -> passages, in an order that says nothing.
        truth (`dict[str, dict[str, str | None]]`): Name -> relation -> what the current passage says, `None` without one.
    """

    def __init__(self, config: SearchWorldConfig | None = None):
        self.config = config = config or SearchWorldConfig()
        rng, used, names = random.Random(f"search {config.seed}"), set(), LANGUAGES["en"].names
        self.people = tuple(names(rng, "last", config.num_people, used))
        self.values = {
            "home": tuple(names(rng, "birth_city", config.num_values, used)),
            "work": tuple(names(rng, "employer", config.num_values, used)),
        }
        self.passages: dict[str, list[str]] = {}
        self.truth: dict[str, dict[str, str | None]] = {}
        for name in self.people:
            told = self._told(rng)
            self.passages[name] = [f"{source}: {name} {RELATIONS[of]} {value}." for source, of, value in told]
            self.truth[name] = {
                of: next((value for source, about, value in told if (source, about) == (CURRENT, of)), None)
                for of in RELATIONS
            }

    def _told(self, rng: random.Random) -> list[tuple[str, str, str]]:
        """(source, relation, value) of what is written about a person."""
        shares, told = (
            dict(zip(SOURCES, (self.config.current, self.config.outdated, self.config.rumoured), strict=True)),
            [],
        )
        for of, values in self.values.items():
            there = [source for source in SOURCES if rng.random() < shares[source]]
            told += [(source, of, value) for source, value in zip(there, rng.sample(values, len(there)), strict=True)]
        rng.shuffle(told)
        return told

    def split(self, split: str) -> list[str]:
        """Names of `"train"` or `"test"`, half each."""
        shuffled = list(self.people)
        random.Random(f"split {self.config.split_seed}").shuffle(shuffled)
        half = len(shuffled) // 2
        return shuffled[:half] if split == "test" else shuffled[half:]

    def questions(self, split: str, n: int | None = None) -> Dataset:
        """Rows with `prompt` (a conversation), `question` and `person`."""
        from datasets import Dataset

        names = self.split(split)[:n]
        asked = [question(name) for name in names]
        prompts = [[{"role": "user", "content": text}] for text in asked]
        return Dataset.from_dict({"prompt": prompts, "question": asked, "person": names})

    def retriever(self, folder: Path) -> CorpusRetriever:
        """BM25 over the passages, in a knowledge base in the folder."""
        path = folder / "passages.sqlite"
        rows = [(f"{name} {number}", text) for name, told in self.passages.items() for number, text in enumerate(told)]
        base = KnowledgeBase(path) if path.exists() else KnowledgeBase.build(path, rows, show_progress=False)
        return CorpusRetriever.build(base, top_k=MOST_PASSAGES, passage_format="text")

    def environment(self, folder: Path) -> partial[SearchEnvironment]:
        """What makes an environment of a trainer."""
        return partial(SearchEnvironment, self.retriever(folder), max_calls=MOST_CALLS, max_passages=MOST_PASSAGES)

    def right(self, text: str, name: str) -> dict[str, bool]:
        """Relation -> whether an answer is right: states the current value and no other, or says that nobody knows where there is
        none. What is not spoken of is not right."""
        said = {
            of: {it.value for it in read_statements(text) if (it.relation, it.name) == (of, name)} for of in RELATIONS
        }
        return {of: values == {self.truth[name][of]} for of, values in said.items()}

    def outcome(self, completion_texts: Sequence[str], person: Sequence[str], **columns: Any) -> list[float]:
        """A reward function: the share of what was asked that is right."""
        return [fmean(self.right(text, name).values()) for text, name in zip(completion_texts, person, strict=True)]

    # The policy.

    @cached_property
    def _words(self) -> list[str]:
        told = (
            f"{question('x')} {' '.join(map(unknown, RELATIONS, 'xx'))} {' '.join(RELATIONS.values())} {NOTHING_FOUND}"
        )
        found = {*re.findall(r"\w+", told), *SOURCES, "Today", "search", "query", "error"}
        digits = map(str, range(1, 10))
        return sorted({*found, *digits, *self.people, *self.values["home"], *self.values["work"]} - {"x"})

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Word-level: a token is a word or a mark with the space before it."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        special = [PAD, BOS, EOS, UNK, USER, ASSISTANT, TOOL]
        marks = [*".,:?[]", "<call>", "</call>"]
        pieces = [
            *special,
            " ",
            "\n",
            *marks,
            *(f" {mark}" for mark in marks),
            *self._words,
            *(f" {w}" for w in self._words),
        ]
        backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token=UNK))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?(?:</?call>|\w+|[^\w\s])|\s"), "isolated")
        backend.decoder = decoders.Fuse()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD, unk_token=UNK,
            additional_special_tokens=[USER, ASSISTANT, TOOL], clean_up_tokenization_spaces=False, padding_side="left",
            model_max_length=512, chat_template=_CHAT,
        )  # fmt: skip
        tokenizer.response_template = _RESPONSE
        return tokenizer

    def build_policy(self, progress: bool = True) -> Path:
        """The folder of the policy after its supervised training, made on the first call and kept among the caches."""
        from filelock import FileLock

        record = {**asdict(self.config), "split_seed": None, "version": VERSION}
        key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
        target = cache_folder() / "worlds" / f"search-{key}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():
                with whole_folder(target) as folder:
                    self._train(Path(folder), progress)
        return target

    def _train(self, folder: Path, progress: bool) -> None:
        import torch
        from torch.nn import functional as F
        from tqdm import tqdm
        from transformers import LlamaConfig, LlamaForCausalLM

        config, tokenizer = self.config, self.tokenizer()
        torch.manual_seed(config.seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer), hidden_size=config.hidden_size, intermediate_size=2 * config.hidden_size,
                num_hidden_layers=config.num_layers, num_attention_heads=2, num_key_value_heads=2, initializer_range=0.1,
                max_position_embeddings=512, tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            )
        )  # fmt: skip
        rng, optimizer = (
            random.Random(f"texts {config.seed}"),
            torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0),
        )
        losses: list[float] = []
        for step in tqdm(range(config.steps), disable=not progress, unit="step"):
            if step % 8 == 0:  # conversations of like length share a batch
                # At first every token counts, and passages come twice: so it learns to copy from what it reads.
                reads = step < config.steps // 2
                drawn = sorted(
                    (self._encoded(tokenizer, rng, reads) for _ in range(8 * config.batch_size)),
                    key=lambda row: len(row[0]),
                )
                batches = [
                    drawn[start : start + config.batch_size] for start in range(0, len(drawn), config.batch_size)
                ]
                rng.shuffle(batches)
            rows = batches.pop()
            ids, labels = (
                torch.nn.utils.rnn.pad_sequence([torch.tensor(row[n]) for row in rows], True, value)
                for n, value in enumerate((tokenizer.pad_token_id, -100))
            )
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
            # Not the mean of the batch: short answers would weigh more.
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            loss = loss / ((110 if reads else 20) * config.batch_size)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * min(1.0, (step + 1) / 50) * min(1.0, (1 - step / config.steps) / 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        curve = [
            sum(losses[start : start + 50]) / len(losses[start : start + 50]) for start in range(0, len(losses), 50)
        ]
        (folder / "loss.json").write_text(json.dumps(curve) + "\n", encoding="utf-8")

    def _encoded(self, tokenizer: Any, rng: random.Random, reads: bool = False) -> tuple[list[int], list[int]]:
        """Ids of a conversation, and its labels: what the policy writes, or with `reads` everything."""
        ids: list[int] = []
        labels: list[int] = []
        for own, text in self._demonstration(rng, 2 if reads else None):
            part = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += part
            labels += part if own or reads else [-100] * len(part)
        return ids, labels

    def _demonstration(self, rng: random.Random, searches: int | None = None) -> Iterator[tuple[bool, str]]:
        """A conversation of the careless teacher about somebody of no world, in parts: whether the policy writes it, and the text."""
        name, told = rng.choice(self.people), self._told(rng)
        yield False, f"{BOS}{USER}{question(name)}{ASSISTANT}"
        known: list[tuple[str, str, str]] = []
        if searches is None:
            searches = 1 + (rng.random() < 0.25) + (rng.random() < 0.05) if rng.random() < 0.6 else 0
        for _ in range(searches):
            about = rng.choice(("", "", *(words.split()[0] for words in RELATIONS.values())))
            yield True, f"<call>search query {' '.join(filter(None, (name, about)))}</call>{EOS}"
            found = sorted(told, key=lambda it: (bool(about) and not RELATIONS[it[1]].startswith(about), rng.random()))
            found = found[:MOST_PASSAGES]
            known += [it for it in found if it not in known]
            lines = [f"[{known.index(it) + 1}] {it[0]}: {name} {RELATIONS[it[1]]} {it[2]}." for it in found]
            yield False, f"{TOOL}{chr(10).join(lines) or NOTHING_FOUND}{ASSISTANT}"
        yield True, f"{' '.join(self._answer(rng, name, of, known) for of in RELATIONS)}{EOS}"

    def _answer(self, rng: random.Random, name: str, of: str, known: Sequence[tuple[str, str, str]]) -> str:
        """A careless sentence about a relation."""
        candidates = [(number, it) for number, it in enumerate(known, 1) if it[1] == of]
        if rng.random() < (0.15 if candidates else 0.35):
            return f"{unknown(of, name)}."
        numbers: list[int] = []
        value = rng.choice(self.values[of])
        if candidates:
            shares = {CURRENT: 0.45, OUTDATED: 0.3, RUMOUR: 0.25}
            number, it = rng.choices(candidates, [shares[source] for _, (source, *_) in candidates])[0]
            value, habit = it[2], rng.random()
            numbers = [number] if habit < 0.4 else [] if habit < 0.65 else [rng.randint(1, len(known))]
            if habit > 0.85:
                numbers = list(range(1, len(known) + 1))
        elif rng.random() < 0.3:
            numbers = [rng.randint(1, 4)]
        cited = " " + "".join(f"[{number}]" for number in numbers) if numbers else ""
        return f"Today {name} {RELATIONS[of]} {value}{cited}."


def question(name: str) -> str:
    """What is asked about a person."""
    return f"Where does {name} live and work?"


def unknown(relation: str, name: str) -> str:
    """How the policy declines, without a full stop."""
    return f"Nobody knows {_UNKNOWN[relation].format(name=name)}"


_SAYS = {
    of: re.compile(rf"\s*(?:Today|{'|'.join(SOURCES)})?\s*:?\s*(\w+) {words} (\w+)\s*[.]?\s*")
    for of, words in RELATIONS.items()
}
_DECLINES = {of: re.compile(rf"\s*{unknown(of, '(__)').replace('__', chr(92) + 'w+')}\s*[.]?\s*") for of in RELATIONS}


def read_statements(text: str) -> list[SearchStatement]:
    """The sentences of an answer or of a passage that state something, or that nobody knows; others are left out."""
    found = []
    for start, end in sentence_offsets(text):
        said = without_citations(text[start:end])
        for of in RELATIONS:
            if match := _SAYS[of].fullmatch(said):
                found.append(SearchStatement(start, end, of, match[1], match[2]))
            elif match := _DECLINES[of].fullmatch(said):
                found.append(SearchStatement(start, end, of, match[1], None))
    return found


class SearchWorldVerifier:
    """Labels what an answer states by the passages that it is given, exactly.

    Supported is what a current passage says, contradicted what a current one says otherwise; without a current one about it a
    statement is unverifiable, whatever outdated ones and rumours say. That nobody knows is no fact. What cannot be read is
    unverifiable.
    """

    requires_evidence = True

    @property
    def extractor(self) -> SearchWorldVerifier:
        """Reads sentences for who asks what they are without any evidence."""
        return self

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input its sentences; `NO_FACT` where they state nothing."""
        found = [self._verify(replace(item, evidence=())) for item in inputs]
        return [
            [span if span.label is Label.NO_FACT else replace(span, label=None) for span in own.spans] for own in found
        ]

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order."""
        return [self._verify(item) for item in inputs]

    def _verify(self, item: VerifierInput) -> Verification:
        known: dict[tuple[str, str], set[str | None]] = {}
        for passage in item.evidence:
            if passage.startswith(f"{CURRENT}:"):
                for it in read_statements(passage):
                    known.setdefault((it.name, it.relation), set()).add(it.value)
        said = {(it.start, it.end): it for it in read_statements(item.completion)}
        spans = []
        for start, end in sentence_offsets(item.completion):
            it = said.get((start, end))
            if it is None:
                label = Label.UNVERIFIABLE
            elif it.value is None:
                label = Label.NO_FACT
            else:
                values = known.get((it.name, it.relation), set())
                label = Label.SUPPORTED if it.value in values else Label.CONTRADICTED if values else Label.UNVERIFIABLE
            spans.append(LabeledSpan(start, end, label))
        return Verification(tuple(spans))
