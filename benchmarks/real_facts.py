"""The facts of `hf-factuality train rtuning --demo real`, from PARAREL: one question and one answer each.

PARAREL (Elazar et al. 2021; github.com/yanaiela/pararel, folder data/trex_lms_vocab) holds facts of Wikidata (CC0) as T-REx
aligned them. Taken are relations of which a model of 135 million parameters knows some: subjects with one object, which does
not stand in the question. Seven relations are for training and for the test on other subjects, two for the test alone.

    PYTHONPATH=. python benchmarks/real_facts.py --data ../shared/data/pararel --out hf_factuality/demos/real_facts.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path


ASKED = {
    "P36": "What is the capital of {}?", "P1376": "Of which country or region is {} the capital?",
    "P17": "In which country is {}?", "P176": "Which company makes the {}?", "P37": "What is an official language of {}?",
    "P103": "What is the native language of {}?", "P407": "In which language was {} written?",
    "P178": "Which company developed {}?", "P364": "In which language was {} originally made?",
}  # fmt: skip
"""Relation of Wikidata -> question; the last two are never trained on."""
OTHERS = ("P178", "P364")


def read_facts(data: Path, relation: str) -> list[tuple[str, str]]:
    """Subjects and objects in which neither names the other, of subjects with one object, sorted."""
    objects: dict[str, set[str]] = {}
    with open(data / "facts" / f"{relation}.jsonl", encoding="utf-8") as lines:
        for fact in map(json.loads, lines):
            objects.setdefault(fact["sub_label"].strip(), set()).add(fact["obj_label"].strip())
    pairs = [(subject, *names) for subject, names in objects.items() if len(names) == 1]
    return sorted((one, two) for one, two in pairs if one[:1].isalpha() and two.casefold() not in one.casefold())


def draw_facts(data: Path, train: int, test: int, rng: random.Random) -> list[dict]:
    """Questions of each relation: `train` and `test` of those that are trained on, `test` of the others."""
    rows, asked = [], set()
    for relation, question in ASKED.items():
        kinds = ["other_relation"] * test if relation in OTHERS else ["train"] * train + ["test"] * test
        # A subject is asked for once, and no fact from both of its sides (a country's capital, a capital's country): so those of
        # the test are new.
        facts = [fact for fact in read_facts(data, relation) if asked.isdisjoint(fact)]
        chosen = rng.sample(facts, min(len(kinds), len(facts)))
        asked.update(subject for subject, _ in chosen)
        rng.shuffle(kinds)
        rows += [
            {"id": f"{relation}/{subject}", "split": kind, "topic": relation, "question": question.format(subject), "answer": name}
            for kind, (subject, name) in zip(kinds, chosen, strict=False)
        ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with facts/P36.jsonl, ...")
    parser.add_argument("--train", type=int, default=60, help="questions of a relation for training")
    parser.add_argument("--test", type=int, default=30, help="and for the test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = draw_facts(args.data, args.train, args.test, random.Random(args.seed))
    args.out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print({kind: sum(row["split"] == kind for row in rows) for kind in ("train", "test", "other_relation")})


if __name__ == "__main__":
    main()
