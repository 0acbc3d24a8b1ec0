"""The pairs that the network of `small` learns from: people's labels from public files, and named edits of real sentences.

Each source is read from a folder of `--sources`, a checkout of the repository that `SOURCES` names; a folder that is absent is left out, and
said. Nothing of the project's own pairs, of WiCE's dev and test claims or of HaluEval is among them.
"""

from __future__ import annotations

import csv
import json
import random
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from _small_facts import CONTRADICTED, FALSE, NOT_SAID, SUPPORTED, UNLABELLED, Pair

from hf_factuality.data import read_labelled_claims
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.verifier.data import synthetic_claims
from hf_factuality.methods.verifier.edits import EDITS, REWRITES, Stock
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.verifiers import JudgeInput
from hf_factuality.verifiers.judges.lexical.judge import WordReading, read_words
from hf_factuality.verifiers.judges.small.judge import WHOLE_WORDS


# Folder -> repository on GitHub and licence of its data.
SOURCES = {
    "e-SNLI": ("OanaMariaCamburu/e-SNLI", "SNLI: CC BY-SA 4.0"),
    "fool-me-twice": ("google-research/fool-me-twice", "Apache 2.0; its evidence is from Wikipedia, CC BY-SA 3.0"),
    "FeverSymmetric": ("TalSchuster/FeverSymmetric", "CC BY-SA 3.0"),
    "ConjNLI": ("swarnaHub/ConjNLI", "MIT; its sentences are from Wikipedia, CC BY-SA 3.0"),
    "MED": ("verypluming/MED", "CC BY-SA 4.0"),
    "HELP": ("verypluming/HELP", "CC BY-SA 4.0"),
    "FactCG": ("derenlei/FactCG", "MIT"),
    "wiki-split": ("google-research-datasets/wiki-split", "CC BY-SA 4.0"),
    "wice": ("ryokamoi/wice", "ODC-BY; its claims are from Wikipedia, CC BY-SA"),
    "pararel": ("yanaiela/pararel", "MIT"),
    "counterfactually-augmented-data": (
        "acmi-lab/counterfactually-augmented-data",
        "Apache 2.0; sentences of SNLI: CC BY-SA 4.0",
    ),
    "Breaking_NLI": ("BIU-NLP/Breaking_NLI", "CC BY-SA 4.0"),
}
SHARED_WORDS = 0.4
"""Two paragraphs that share so many of their words may tell of the same."""
SCENES = frozenset({"snli", "cad", "breaking", "fever", "conj", "conj_adv", "med", "help"})
"""Sources of single sentences without a name or a place: beside others of these another man would be meant."""
_REFERS = re.compile(
    r"(?i:it|its|he|his|she|her|they|their|them|this|that|these|those|there|then|both|neither|each|one|another|others?|all|none|some|most|"
    r"only|but|and|so|such|however|instead|by|until|since|after|before|later|the)\b"
)
"""A first word that may refer to the sentence before."""
_NLI = {"entailment": SUPPORTED, "contradiction": CONTRADICTED, "neutral": NOT_SAID}
_EDITED = {"entity": FALSE, "role": FALSE, "detail": NOT_SAID, "elsewhere": NOT_SAID}
"""The classes of edits; the others contradict."""
# Relations of which a subject has one object, mostly.
_FUNCTIONAL = (
    "P19 P20 P36 P159 P17 P30 P103 P495 P364 P407 P131 P740 P176 P178 P127 P449 P1376 P37 P276 P361 P138 P264".split()
)
_BROKEN = ((" ,", ","), (" .", "."), (" ;", ";"), (" :", ":"), (" '", "'"), ("`` ", '"'), (" ''", '"'), ("-LRB- ", "("),
           (" -RRB-", ")"), ("-LSB- ", "["), (" -RSB-", "]"), (" n't", "n't"), (" )", ")"), ("( ", "("), (" - ", "-"),
           (" --", " –"))  # fmt: skip


def _joined(text: str) -> str:
    """A text of tokens with spaces as people write them."""
    for broken, whole in _BROKEN:
        text = text.replace(broken, whole)
    return text


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").splitlines()


def _snli(folder: Path) -> Iterator[Pair]:
    for split in ("dev", "test"):
        columns = [_lines(folder / f"dataset/eSNLI/{name}.{split}") for name in ("s1", "s2", "labels")]
        for evidence, claim, label in zip(*columns, strict=True):
            if label in _NLI:
                yield evidence, claim, _NLI[label], "snli"


def _fool_me_twice(folder: Path) -> Iterator[Pair]:
    rng = random.Random(0)
    for split in ("dev", "test"):
        for row in map(json.loads, _lines(folder / f"dataset/{split}.jsonl")):
            gold = [piece["text"] for piece in row["gold_evidence"]]
            if not gold or len(" ".join(gold).split()) > 90:
                continue
            claim = row.get("claim") or row["text"]
            yield " ".join(gold), claim, SUPPORTED if row["label"] == "SUPPORTS" else CONTRADICTED, "fm2"
            others = [piece["text"] for piece in row["retrieved_evidence"] if piece["text"] not in gold]
            if others and rng.random() < 0.15:
                yield " ".join(rng.sample(others, min(2, len(others)))), claim, NOT_SAID, "fm2"


def _fever_symmetric(folder: Path) -> Iterator[Pair]:
    for split in ("dev", "test"):
        for row in map(json.loads, _lines(folder / f"symmetric_v0.2/fever_symmetric_{split}.jsonl")):
            evidence, label = row.get("evidence") or row["evidence_sentence"], row.get("gold_label") or row["label"]
            yield _joined(evidence), _joined(row["claim"]), SUPPORTED if label == "SUPPORTS" else CONTRADICTED, "fever"


def _conj_nli(folder: Path) -> Iterator[Pair]:
    for name, source in (("adversarial_train_15k", "conj_adv"), ("conj_dev", "conj")):
        for line in _lines(folder / f"data/NLI/{name}.tsv")[1:]:
            cells = line.split("\t")
            if len(cells) == 3 and cells[2] in _NLI and len(cells[0].split()) < 45:
                yield cells[0], cells[1], _NLI[cells[2]], source


def _med(folder: Path) -> Iterator[Pair]:
    with (folder / "MED.tsv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["gold_label"] in _NLI:
                yield row["sentence1"], row["sentence2"], _NLI[row["gold_label"]], "med"


def _help(folder: Path) -> Iterator[Pair]:
    for name in ("and", "or"):
        with (folder / f"output_en/leskexppmb_{name}.tsv").open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                if row["gold_label"] in _NLI and len(row["ori_sentence"].split()) < 30:
                    yield _joined(row["ori_sentence"]), _joined(row["new_sentence"]), _NLI[row["gold_label"]], "help"


def _factcg(folder: Path) -> Iterator[Pair]:
    for row in map(json.loads, _lines(folder / "data/training_stage2/CG2C_doc.json")):
        if len(row["text_a"].split()) < 130:
            yield row["text_a"], row["text_b"][0], SUPPORTED if int(row["orig_label"]) else NOT_SAID, "factcg"


def _wiki_split(folder: Path) -> Iterator[Pair]:
    """A long sentence and one of the two that people made of it, as it stands, rewritten or edited."""
    triples = []
    for split in ("tune", "validation", "test"):
        for line in _lines(folder / f"{split}.tsv"):
            whole, _, parts = line.partition("\t")
            first, _, second = (_joined(part.strip()) for part in parts.partition("<::::>"))
            whole = _joined(whole)
            if (
                min(len(first.split()), len(second.split())) >= 5
                and len(whole.split()) <= 50
                and whole[0] not in "'\"("
            ):
                triples.append((whole, first, second))
    rng = random.Random(5)
    rng.shuffle(triples)
    stock = Stock.of(whole for whole, _, _ in triples[:6000])
    for whole, first, second in triples[:5000]:
        near, kind = Stock.of([whole]), rng.random()
        starts_with_pronoun = re.match(r"(He|She|It|They|This|These|His|Her|Its|Their)\b", second)
        part = first if starts_with_pronoun or rng.random() < 0.6 else second
        own = part
        for name in rng.sample([*REWRITES], len(REWRITES)):
            rewritten = REWRITES[name](own, near, rng) if rng.random() < 0.6 and name != "clause" else None
            own = rewritten or own
        if kind < 0.42:
            yield whole, own, SUPPORTED, "wikisplit"
        elif kind < 0.85:
            edited, name = _edited(whole, own, stock, near, rng)
            if edited:
                yield whole, edited, _EDITED.get(name, CONTRADICTED), "wikisplit"
        elif kind < 0.93:
            yield first, whole, NOT_SAID, "wikisplit"
        else:  # the evidence is edited: its own claim holds, and the original does not
            edited, name = _edited(whole, first, stock, near, rng)
            if edited and name != "detail":
                yield f"{edited} {second}", first, _EDITED.get(name, CONTRADICTED), "wikisplit"
                yield f"{edited} {second}", edited, SUPPORTED, "wikisplit"


def _edited(whole: str, claim: str, stock: Stock, near: Stock, rng: random.Random) -> tuple[str | None, str]:
    for name in sorted(EDITS, key=lambda _: rng.random()):
        edited = EDITS[name](claim, stock if rng.random() < 0.4 else near, rng)
        if edited and edited != claim and edited not in whole:
            return edited, name
    return None, ""


def _pararel(folder: Path) -> Iterator[Pair]:
    """A fact in one pattern and in another, with its object or one of another subject."""
    rng = random.Random(6)
    for relation in _FUNCTIONAL:
        patterns = [json.loads(line)["pattern"] for line in _lines(folder / f"patterns/{relation}.jsonl")]
        facts = [json.loads(line) for line in _lines(folder / f"facts/{relation}.jsonl")]

        def put(subject: str, value: str, patterns: list[str] = patterns) -> str:
            return rng.choice(patterns).replace("[X]", subject).replace("[Y]", value)

        for fact in rng.sample(facts, min(90, len(facts))):
            subject, value = fact["sub_label"], fact["obj_label"]
            elsewhere = rng.choice(facts)
            other, wrong = elsewhere["sub_label"], rng.choice(facts)["obj_label"]
            if other == subject or wrong == value:
                continue
            sentences = [put(subject, value)] + ([put(other, wrong)] if rng.random() < 0.6 else [])
            rng.shuffle(sentences)
            evidence, kind = " ".join(sentences), rng.random()
            if kind < 0.5:
                yield evidence, put(subject, value), SUPPORTED, "pararel"
            elif kind < 0.85 or len(sentences) == 1:
                yield evidence, put(subject, wrong), FALSE, "pararel"
            else:
                yield evidence, put(other, value), FALSE, "pararel"


def _wice(folder: Path) -> Iterator[Pair]:
    path = folder / "data/non_supported_tokens/train.jsonl"
    for row in read_labelled_claims([("wice", list(read_rows(path)))]):
        if row["window"] and len(row["window"].split()) < 150:
            yield row["window"], row["claim"], SUPPORTED if row["label"] == "supported" else NOT_SAID, "wice"


def _counterfactual(folder: Path) -> Iterator[Pair]:
    """Pairs of SNLI in which people changed one side so that the label became another."""
    for split in ("train", "dev", "test"):
        for line in _lines(folder / f"NLI/revised_combined/{split}.tsv")[1:]:
            evidence, claim, label = line.split("\t")
            yield evidence, claim, _NLI[label], "cad"


def _breaking(folder: Path) -> Iterator[Pair]:
    """Sentences with one word exchanged."""
    with zipfile.ZipFile(folder / "breaking_nli_dataset.zip") as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".jsonl") and "MACOSX" not in name]
        for row in map(json.loads, archive.read(name).decode("utf-8").splitlines()):
            if row["gold_label"] in _NLI:
                yield row["sentence1"], row["sentence2"], _NLI[row["gold_label"]], "breaking"


def edited_pairs(pairs: Sequence[Pair], count: int, seed: int) -> list[Pair]:
    """So many claims of these pairs at most, each changed by a named edit: nobody knows whether they hold now."""
    rng, blocks = random.Random(seed), {}
    for evidence, claim, _, _ in pairs:
        blocks.setdefault(evidence, []).append(claim)
    found: list[Pair] = []
    for evidence, claims in rng.sample([*blocks.items()], len(blocks)):
        near = Stock.of([evidence, *claims])
        for claim in claims:
            edited, _ = _edited(evidence, claim, near, near, rng)
            if edited and edited not in claims:
                found.append((evidence, edited, UNLABELLED, "edited"))
        if len(found) >= count:
            break
    return found[:count]


def _eights(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[place : place + 8]) for place in range(len(words) - 7)}


def hotpot_pairs(data: Path) -> Iterator[Pair]:
    """Named edits of the knowledge of every second HotpotQA row that shares no eight words in a row with HaluEval."""
    halueval = set()
    for _, row in read_rows(data / "fspo/halueval-train.parquet"):
        for column in ("knowledge", "question", "right_answer", "hallucinated_answer"):
            halueval |= _eights(row[column])
    rows = [row["knowledge"] for _, row in read_rows(data / "fspo/hotpot-2k-train.parquet")][::2]
    passages = [text for text in rows if not _eights(text) & halueval]
    for row in synthetic_claims(passages, 6000, seed=11):
        label = SUPPORTED if row["label"] == "supported" else _EDITED.get(row["kind"], CONTRADICTED)
        if len(row["evidence"][0].split()) < 70:
            yield row["evidence"][0], row["claim"], label, "hotpot"


def written_pairs() -> tuple[list[Pair], list[Pair]]:
    """The pairs of `small_pairs/`, which were written for training: to learn from, and to validate on.

    Of each file but `by_hand.txt` the last fourteenth of the paragraphs is for validation.
    """
    classes = {"+": SUPPORTED, "-": CONTRADICTED, "?": NOT_SAID}
    learnt: list[Pair] = []
    validation: list[Pair] = []
    for path in sorted(Path(__file__).with_name("small_pairs").glob("*.txt")):
        blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
        kept_apart = 0 if path.stem == "by_hand" else round(len(blocks) / 14)
        for number, block in enumerate(blocks):
            evidence, *claims = [line for line in block.splitlines() if not line.startswith("#")]
            pairs = [(evidence, line[2:], classes[line[0]], path.stem) for line in claims]
            (learnt if number < len(blocks) - kept_apart else validation).extend(pairs)
    return learnt, validation


def as_read(pairs: Sequence[Pair], closest: float, among: float, seed: int) -> Iterator[Pair]:
    """The pairs with evidence as the judge meets it.

    A share `among` has its evidence among sentences or paragraphs of its source. Of what is longer than the judge reads as a whole, and of
    a share `closest` of the others, there are the three sentences that come closest to the claim.
    """
    rng = random.Random(seed)
    texts: dict[str, dict[str, None]] = {}
    for evidence, _, _, source in pairs:
        texts.setdefault(source, {})[evidence] = None
    paragraphs = {source: [*own] for source, own in texts.items()}
    for evidence, claim, label, source in pairs:
        cut = rng.random() < closest
        if source not in SCENES and rng.random() < among:
            cut, (evidence, label) = False, _among(evidence, label, paragraphs[source], rng)
        if cut or len(evidence.split()) > WHOLE_WORDS:
            read = read_words(JudgeInput(claim, (evidence,)))
            evidence = " ".join(read.closest) if isinstance(read, WordReading) and read.closest else evidence
        yield evidence, claim, label, source


def _among(evidence: str, label: int, paragraphs: Sequence[str], rng: random.Random) -> tuple[str, int]:
    """The evidence with one to three sentences of other paragraphs, or whole ones, which a tenth has alone: then nothing is said."""
    words = set(evidence.lower().split())
    others = [  # one that shares much with the evidence might speak for or against the claim
        text
        for text in rng.sample(paragraphs, min(12, len(paragraphs)))
        if len(words & set(text.lower().split())) < SHARED_WORDS * len(words)
    ]
    if rng.random() >= 0.25:
        return _with_sentences(evidence, others[: rng.randint(1, 3)], rng), label
    others = others[: rng.randint(2, 9)]
    if len(others) > 2 and rng.random() < 0.1:
        evidence, label = others.pop(), NOT_SAID
    others.insert(rng.randint(0, len(others)), evidence)
    return " ".join(others), label


def _with_sentences(evidence: str, others: Iterable[str], rng: random.Random) -> str:
    """The evidence with a sentence of each of the others, where neither it nor the one behind it refers to what stands before."""
    own = [evidence[start:end] for start, end in sentence_offsets(evidence)]
    for other in others:
        places = [0, *(place for place in range(1, len(own)) if not _REFERS.match(own[place])), len(own)]
        first, *later = [other[start:end] for start, end in sentence_offsets(other)]
        own.insert(rng.choice(places), rng.choice([first, *(one for one in later if not _REFERS.match(one))]))
    return " ".join(own)


_READERS = {"e-SNLI": _snli, "fool-me-twice": _fool_me_twice, "FeverSymmetric": _fever_symmetric, "ConjNLI": _conj_nli,
            "MED": _med, "HELP": _help, "FactCG": _factcg, "wiki-split": _wiki_split, "pararel": _pararel, "wice": _wice,
            "counterfactually-augmented-data": _counterfactual, "Breaking_NLI": _breaking}  # fmt: skip


def read_pairs(sources: Path) -> Iterator[Pair]:
    """All pairs of the folders that are there."""
    for name, (repository, licence) in SOURCES.items():
        if (sources / name).is_dir():
            yield from _READERS[name](sources / name)
        else:
            print(f"left out: {sources / name} is absent; it is a checkout of github.com/{repository} ({licence})")


def split_pairs(pairs: Iterable[Pair]) -> tuple[dict[str, list[Pair]], list[Pair]]:
    """Pairs to learn from by source, and those to validate on, which share no evidence with them."""
    rng, by_source = random.Random(0), {}
    for evidence, claim, label, source in pairs:
        evidence, claim = " ".join(evidence.split()), " ".join(claim.split())
        if evidence and claim:
            by_source.setdefault(source, []).append((evidence, claim, label, source))
    validation: list[Pair] = []
    for source, own in by_source.items():
        own = list(dict.fromkeys(own))
        rng.shuffle(own)
        count = 1000 if source == "snli" else min(150, len(own) // 10)
        validation += own[:count]
        seen = {pair[0] for pair in own[:count]}
        by_source[source] = [pair for pair in own[count:] if pair[0] not in seen]
    return by_source, validation
