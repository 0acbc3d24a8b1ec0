"""Makes the embedded judge's lexicon from WordNet 3.0: which English words mean the same, the opposite, or something wider.

    python benchmarks/lexicon.py /usr/share/wordnet     (Debian: the package wordnet-base)

Of each word only the commonest meanings are kept: rare ones make any two words alike. WordNet's licence, which allows
this, goes into the package beside the file.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections import defaultdict
from pathlib import Path


TARGET = Path(__file__).resolve().parent.parent / "hf_factuality/verifiers/judges/lexical/lexicon.txt.gz"
PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
SENSES = {"n": 3, "v": 4, "a": 3, "r": 1}
# Meanings so wide that everything is one of them are no parents.
DEPTH = 4
WORD = re.compile(r"[a-z]{2,}")


def read_counts(folder: Path) -> dict[tuple[str, str], int]:
    """How often people found each word as each part of speech."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for line in (folder / "cntlist.rev").open(encoding="latin-1"):
        key, _, count = line.split()
        word, _, rest = key.partition("%")
        counts[word, "nvara"[int(rest[0]) - 1]] += int(count)
    return counts


def read_senses(folder: Path) -> tuple[dict, dict, set]:
    """Synsets by part of speech and offset: words, and pointers as (symbol, target, source word, target word);
    the meanings of each word and part of speech, with how many people were found to use; the words written with a capital."""
    senses, index = {}, {}
    proper: set[tuple] = set()
    for name, part in PARTS.items():
        for line in (folder / f"data.{name}").open(encoding="latin-1"):
            if line.startswith(" "):
                continue
            fields = line.split(" | ")[0].split()
            count = int(fields[3], 16)
            written = [re.sub(r"\(.*\)", "", word) for word in fields[4 : 4 + 2 * count : 2]]
            words = [word.lower() for word in written]
            proper.update((word.lower(), (part, fields[0])) for word in written if word[0].isupper())
            at = 5 + 2 * count
            pointers = [
                (
                    fields[i],
                    (fields[i + 2].replace("s", "a"), fields[i + 1]),
                    int(fields[i + 3][:2], 16),
                    int(fields[i + 3][2:], 16),
                )
                for i in range(at, at + 4 * int(fields[at - 1]), 4)
            ]
            senses[part, fields[0]] = words, pointers
        for line in (folder / f"index.{name}").open(encoding="latin-1"):
            if line.startswith(" "):
                continue
            fields = line.split()
            offsets = fields[-int(fields[2]) :]
            index[fields[0], part] = [(part, offset) for offset in offsets], int(fields[-int(fields[2]) - 1])
    return senses, index, proper


def build(folder: Path) -> str:
    """The lexicon as text; `hf_factuality/verifiers/judges/lexical/lexicon.py` describes its lines."""
    senses, index, proper = read_senses(folder)
    counts = read_counts(folder)

    def parents(sense: tuple) -> list[tuple]:
        symbols = ("@", "@i") if sense[0] in "nv" else ("&",)
        return [target for symbol, target, *_ in senses[sense][1] if symbol in symbols]

    depths: dict[tuple, int] = {}

    def depth(sense: tuple) -> int:
        if sense not in depths:
            depths[sense] = 0
            depths[sense] = 1 + max(map(depth, parents(sense)), default=-1)
        return depths[sense]

    kept: dict[str, list[tuple]] = defaultdict(list)
    for (word, part), (found, tagged) in index.items():
        if WORD.fullmatch(word):
            # Meanings that nobody was found to use come after those that somebody was.
            kept[word] += found[: min(SENSES[part], max(tagged, 1) + 1)]
    numbers: dict[tuple, int] = {}
    above: dict[int, list[int]] = {}

    def number(sense: tuple) -> int:
        if sense not in numbers:
            numbers[sense] = len(numbers)
            up = [
                parent
                for parent in parents(sense)
                if sense[0] == "a" or depth(parent) >= (DEPTH if sense[0] == "n" else 1)
            ]
            above[numbers[sense]] = [number(parent) for parent in up]
        return numbers[sense]

    lines = []
    for word in sorted(kept):
        opposite, derived = set(), set()
        for sense in kept[word]:
            words, pointers = senses[sense]
            for symbol, target, source, aim in pointers:
                if source and words[source - 1] == word:
                    other = senses[target][0][aim - 1]
                    if WORD.fullmatch(other) and other != word:
                        (opposite if symbol == "!" else derived if symbol in "+\\" else set()).add(other)
        parts = "".join(sorted(dict.fromkeys(part for part, _ in kept[word]), key=lambda part: -counts[word, part]))
        if all((word, sense) in proper for sense in kept[word] if sense[0] == "n") and parts == "n":
            parts = "p"
        ids = " ".join(f"{number(sense):x}" for sense in kept[word])
        lines.append("\t".join((word, parts, ids, " ".join(sorted(opposite)), " ".join(sorted(derived)))).rstrip("\t"))
    forms = {}
    for name in ("noun", "verb", "adj"):
        for line in (folder / f"{name}.exc").open(encoding="latin-1"):
            form, lemma = line.split()[:2]
            if WORD.fullmatch(form) and lemma in kept and form not in forms:
                forms[form] = lemma
    text = ["\n".join(lines), "\n".join(f"{form}\t{lemma}" for form, lemma in sorted(forms.items()))]
    text.append("\n".join(" ".join(f"{up:x}" for up in above[i]) for i in range(len(above))))
    return "\f".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with data.noun, index.noun and the like")
    text = build(parser.parse_args().folder)
    with TARGET.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write(text.encode())
    print(f"{TARGET.name}: {len(text):,} characters, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
