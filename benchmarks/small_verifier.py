"""The judge `small`: training of its network, fit of its last layer, and its figures beside the lexical judge.

    python benchmarks/small_verifier.py --data ../shared/data                              # figures
    python benchmarks/small_verifier.py --data ../shared/data --sources DIR --train BASE   # the network, some eighteen hours on two cores
    python benchmarks/small_verifier.py --data ../shared/data --sources DIR --fit          # the weights of the last layer
    python benchmarks/small_verifier.py --bar                                              # its intercept
    python benchmarks/small_verifier.py --data ../shared/data --sources DIR --pack FILE    # pairs for a GPU: `_small_training.py`

DATA holds `wice/`, `fspo/` and `factscore/`. DIR has a folder per source, each a checkout of the repository that
`_small_pairs.py` names; those that are absent are left out, and said. BASE is a folder with gte-small (MIT). `--train` writes
`weights.safetensors` and `tokenizer.json` to `--out`, in the form that the package has them.

`--held_out` measures on the pairs that nobody tunes on, too (`tests/cases/judging/held_out.jsonl`, `natural.jsonl`, `plain.jsonl`, `later.jsonl`, `fresh.jsonl`) and prints sums only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _small_facts import make_pairs, read_facts
from _small_forms import FAMILIES, form_pairs
from _small_forms import SOURCE as FORMS
from _small_lives import FAMILIES as LIVES
from _small_notations import FAMILIES as NOTATIONS
from _small_notations import SOURCE as NOTATED
from _small_pairs import edited_pairs, hotpot_pairs, read_pairs, split_pairs, written_pairs
from _small_templates import SOURCE, TWINS, read_templates, template_pairs, twin_pairs
from lexical_verifier import auroc, bootstrap_interval, fit_logistic, halueval, hotpot, read_jsonl
from tokenizers import Tokenizer

from hf_factuality.data.labelled_claims import read_claim
from hf_factuality.methods.verifier.data import SUPPORTED, synthetic_claims
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.spans import Label
from hf_factuality.verifiers import JudgeInput, LexicalJudge, SmallJudge
from hf_factuality.verifiers.judges.lexical.judge import WordReading, read_words
from hf_factuality.verifiers.judges.small import judge as small_judge
from hf_factuality.verifiers.judges.small import network
from hf_factuality.verifiers.judges.small.judge import JOINED, joined_features, pair_read


CASES = Path(__file__).resolve().parent.parent / "tests" / "cases" / "judging"
LONG = "news science history places everyday culture answers_articles answers_snippets".split()
SHORT = "short_numbers short_names short_negations short_comparisons short_details short_meanings".split()
NATURAL = "natural_people natural_news natural_science natural_places natural_documents".split()
LONGER = ["answers_passages", "summaries"]
NEAR = "dates negations numbers roles wordings distractors sentences replies".split()
NEARER = "amounts quantifiers denials converses attributions times mixed statements".split()
LATEST = "descriptions comparisons relations opposites durations rewordings assertions ten_kinds".split()
OF_RUN_15 = "actors briefs calendar details directions doubles everyday_answers figures findings ledgers lives meanings notices otherwise parties places_and_things restated rivals sets singles".split()
OF_RUN_16 = "amounts_again answers_to_questions before_after careers cited_pages handbooks how_many in_business in_everyday in_history in_science in_sport_and_culture measured more_or_less one_detail passages_mixed processes retrieved roles_again said_otherwise several_lines short_twins speakers status_of_facts turned_round two_at_once web_pages when which_one who_is_who whole_and_part".split()
OF_RUN_17 = "hard_additions hard_affairs hard_amounts hard_amounts_two hard_answers hard_bounds hard_business hard_chronicles hard_comparisons hard_counts hard_daily hard_dates hard_dates_two hard_deeds hard_details hard_documents hard_everyday hard_firms hard_games hard_history hard_household hard_inferences hard_lives hard_longer hard_moments hard_nature hard_numbers hard_pairs hard_paraphrases hard_past hard_readings hard_reports hard_rewordings hard_roles hard_science hard_scopes hard_senses hard_sport hard_stage hard_studies hard_summaries hard_towns hard_turns hard_words hard_years".split()
TWINNED = [*NEAR, *NEARER, *LATEST, *OF_RUN_15, *OF_RUN_16, *OF_RUN_17]
"""Files of `small_pairs/`; `TWINNED` are those of near twins."""
ALL = 100_000
TEMPLATES, TWIN_PAIRS = 79_000, 68_000
"""Pairs that are made from `small_templates/`."""
FORM_PAIRS, NOTATION_PAIRS = 89_000, 60_000
"""Pairs of `_small_forms.py` and `_small_lives.py`, and of `_small_notations.py`."""
EDITED_PAIRS = 250_000
"""Claims by edits, for a teacher to judge."""
# The runs of the training, one after the other: what each takes of a source, the learning rate, and the share of the pairs whose
# evidence is cut to the three closest sentences; `among`, the share with other sentences beside it; `ranked`, whether the claims about one
# evidence are ranked; `dropout`, of states and attention. An averaged run ends with the mean of its weights and those after earlier runs,
# with the shares of these.
RUNS = (
    {"taken": {"snli": 12000, "cad": 9000, "breaking": 1500, "fm2": ALL, "fever": ALL, "conj_adv": 3000, "conj": ALL, "med": 2500,
               "help": 1000, "factcg": ALL, "wikisplit": ALL, "wice": ALL, "pararel": ALL, "hotpot": ALL, "facts": 6000},
     "rate": 8e-5, "closest": 0.0},
    {"taken": {**dict.fromkeys([*LONG, *SHORT, *LONGER, "by_hand"], ALL),
               "snli": 1500, "cad": 1500, "fm2": 2000, "fever": 800, "facts": 1500, "wikisplit": 1500, "hotpot": 1500, "wice": ALL,
               "pararel": 300, "conj": 400, "conj_adv": 400, "med": 300, "factcg": 400},
     "rate": 8e-5, "closest": 0.25},
    {"taken": {**dict.fromkeys(NATURAL, ALL), **dict.fromkeys([*LONG, *SHORT, *LONGER], 250),
               "snli": 400, "cad": 400, "fm2": 800, "fever": 300, "facts": 300, "wikisplit": 600, "hotpot": 600, "wice": ALL},
     "rate": 5e-5, "closest": 0.25, "averaged": {2: 1 / 2}},
    {"taken": {**dict.fromkeys([*LONG, *SHORT], 1100), **dict.fromkeys([*LONGER, *NATURAL], 1500),
               "fm2": 1000, "wikisplit": 500, "hotpot": 500, "wice": ALL, "snli": 500, "cad": 500},
     "rate": 5e-5, "closest": 0.12, "among": 0.45},
    {"taken": {**dict.fromkeys(NEAR, 7700), **dict.fromkeys([*LONG, *SHORT], 150), **dict.fromkeys(LONGER, 200),
               **dict.fromkeys(NATURAL, 400), "fm2": 500, "wikisplit": 200, "hotpot": 300, "wice": 500, "snli": 200, "cad": 200},
     "rate": 8e-5, "closest": 0.12, "among": 0.35},
    {"taken": {**dict.fromkeys(NEAR, 2800), **dict.fromkeys([*LONG, *SHORT, *LONGER], 90), **dict.fromkeys(NATURAL, 300),
               "fm2": 500, "fever": 300, "wikisplit": 300, "hotpot": 300, "wice": 500, "snli": 200, "cad": 200},
     "rate": 6e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {4: 1 / 3}},
    {"taken": {**dict.fromkeys(NEAR, 7500), **dict.fromkeys([*LONG, *SHORT, *LONGER], 560), **dict.fromkeys(NATURAL, 700),
               "fm2": 500, "fever": 300, "wikisplit": 300, "hotpot": 300, "wice": 500, "snli": 200, "cad": 200},
     "rate": 8e-5, "closest": 0.12, "among": 0.35, "ranked": True},
    {"taken": {**dict.fromkeys(NEARER, ALL), **dict.fromkeys(NEAR, 250), **dict.fromkeys([*LONG, *SHORT, *LONGER], 90),
               **dict.fromkeys(NATURAL, 300), "fm2": 500, "fever": 300, "wikisplit": 200, "hotpot": 200, "wice": 400, "snli": 200, "cad": 200},
     "rate": 8e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {6: 0.2, 7: 0.3}},
    {"taken": {**dict.fromkeys(LATEST, ALL), **dict.fromkeys(NEARER, 1250), **dict.fromkeys(NEAR, 830),
               **dict.fromkeys([*LONG, *SHORT, *LONGER], 160), **dict.fromkeys(NATURAL, 760),
               "fm2": 1250, "fever": 750, "wikisplit": 500, "hotpot": 500, "wice": 1000, "snli": 500, "cad": 500},
     "rate": 8e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {8: 0.25}},
    {"taken": {SOURCE: 51_000, **dict.fromkeys(LATEST, 1680), **dict.fromkeys([*NEARER, *NEAR], 710),
               **dict.fromkeys([*LONG, *SHORT, *LONGER], 97), **dict.fromkeys(NATURAL, 1140),
               "fm2": 1425, "fever": 855, "wikisplit": 570, "hotpot": 570, "wice": 1140, "snli": 570, "cad": 570},
     "rate": 8e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {9: 0.5}},
    {"taken": {SOURCE: ALL, **dict.fromkeys(LATEST, 2570), **dict.fromkeys([*NEARER, *NEAR], 1090),
               **dict.fromkeys([*LONG, *SHORT, *LONGER], 150), **dict.fromkeys(NATURAL, 1740),
               "fm2": 2170, "fever": 1300, "wikisplit": 870, "hotpot": 870, "wice": 1740, "snli": 870, "cad": 870},
     "rate": 8e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {10: 0.5}},
    {"taken": {SOURCE: 55_000, **dict.fromkeys(LATEST, 1780), **dict.fromkeys([*NEARER, *NEAR], 750),
               **dict.fromkeys([*LONG, *SHORT, *LONGER], 100), **dict.fromkeys(NATURAL, 1200),
               "fm2": 1500, "fever": 900, "wikisplit": 600, "hotpot": 600, "wice": 1200, "snli": 600, "cad": 600},
     "rate": 8e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {11: 0.5}},
    {"taken": {FORMS: ALL, SOURCE: 45_000, **dict.fromkeys(LATEST, 800), **dict.fromkeys([*NEARER, *NEAR], 340),
               **dict.fromkeys([*LONG, *SHORT, *LONGER], 45), **dict.fromkeys(NATURAL, 540),
               "fm2": 680, "fever": 400, "wikisplit": 270, "hotpot": 270, "wice": 540, "snli": 270, "cad": 270},
     "rate": 8e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {12: 0.5}},
    {"taken": {TWINS: ALL, SOURCE: 24_700, FORMS: 22_700, **dict.fromkeys(LATEST, 1180), **dict.fromkeys([*NEARER, *NEAR], 500),
               **dict.fromkeys([*LONG, *SHORT, *LONGER], 67), **dict.fromkeys(NATURAL, 800),
               "fm2": 1000, "fever": 600, "wikisplit": 400, "hotpot": 400, "wice": 800, "snli": 400, "cad": 400},
     "rate": 9e-5, "closest": 0.12, "among": 0.35, "ranked": True, "averaged": {13: 0.5}},
    {"taken": {**dict.fromkeys(OF_RUN_15, ALL), NOTATED: 14_000, TWINS: 10_000, SOURCE: 5_000, FORMS: 4_000,
               **dict.fromkeys([*LATEST, *NEARER, *NEAR], 540), **dict.fromkeys([*LONG, *SHORT, *LONGER, *NATURAL], 130),
               "fm2": 2200, "fever": 700, "wikisplit": 500, "hotpot": 400, "wice": 450, "snli": 500, "cad": 500, "factcg": 200},
     "rate": 1.2e-4, "batch": 64, "closest": 0.12, "among": 0.12, "ranked": True, "averaged": {14: 0.5}},
    {"taken": {**dict.fromkeys(OF_RUN_16, ALL), **dict.fromkeys(OF_RUN_15, 1900), TWINS: 8_000, NOTATED: 7_000, SOURCE: 1_900,
               **dict.fromkeys([*LATEST, *NEARER, *NEAR], 540), **dict.fromkeys([*LONG, *SHORT, *LONGER, *NATURAL], 130),
               "fm2": 2700, "fever": 900, "wikisplit": 500, "hotpot": 500, "wice": ALL, "snli": 300, "cad": 500, "factcg": 300},
     "rate": 1e-4, "batch": 64, "closest": 0.12, "among": 0.12, "ranked": True, "averaged": {15: 0.5}},
    {"taken": {**dict.fromkeys(OF_RUN_17, ALL), **dict.fromkeys([*LATEST, *NEARER, *NEAR, *OF_RUN_15, *OF_RUN_16], 500),
               **dict.fromkeys([*LONG, *SHORT, *LONGER, *NATURAL], 130), NOTATED: 11_000, TWINS: 5_000, FORMS: 6_000, SOURCE: 2_000,
               "fm2": 6000, "fever": 1800, "wikisplit": 1000, "hotpot": 1200, "wice": ALL, "snli": 600, "cad": 1000},
     "rate": 9e-5, "batch": 32, "dropout": 0.1, "closest": 0.12, "among": 0.12, "ranked": True, "averaged": {16: 0.5}},
)  # fmt: skip
"""Settings of the runs."""
PACKED = {
    "taken": {TWINS: ALL, SOURCE: ALL, FORMS: ALL, NOTATED: ALL, "edited": EDITED_PAIRS,
              **dict.fromkeys([*LONG, *SHORT, *LONGER, *NATURAL, *TWINNED, "by_hand"], ALL),
              **dict.fromkeys(["snli", "cad", "fm2", "fever", "conj", "conj_adv", "med", "factcg", "wikisplit", "wice", "pararel", "hotpot", "facts"], ALL)},
    "rate": 1.5e-4, "closest": 0.12, "among": 0.2, "ranked": True,
}  # fmt: skip
"""Settings of `--pack`: all pairs, and claims by edits without labels."""
MOST_PASS = 0.12
"""Of the false pairs that set the bar, how many may pass."""
BAR_STEP, LAST_BAR = 0.05, 40
"""The intercept is a multiple of the first, up to so many of them."""
HELD_FACTS = 10
"""Facts of `small_facts.txt` that the network does not learn from, to validate on."""
# (claim, evidence, whether it is supported)
Claim = tuple[str, tuple[str, ...], bool]


def all_pairs(data: Path, sources: Path):
    """Pairs to learn from by source, and pairs to validate on."""
    facts = read_facts()
    pairs, validation = split_pairs([*read_pairs(sources), *hotpot_pairs(data)])
    pairs["facts"] = make_pairs(facts[HELD_FACTS:], 9000, seed=3)
    learnt, kept_apart = written_pairs()
    for pair in learnt:
        pairs.setdefault(pair[3], []).append(pair)
    templates, templates_apart = read_templates()
    pairs[FORMS] = form_pairs(FAMILIES | LIVES, FORM_PAIRS, seed=9)
    pairs[SOURCE] = template_pairs(templates, TEMPLATES, seed=5)
    pairs[TWINS] = twin_pairs(templates, TWIN_PAIRS, seed=11)
    pairs[NOTATED] = form_pairs(NOTATIONS, NOTATION_PAIRS, seed=21, source=NOTATED)
    made = [*make_pairs(facts[:HELD_FACTS], 300, seed=7), *template_pairs(templates_apart, 450, seed=7)]
    return pairs, [*validation, *kept_apart, *made]


def pack_all(data: Path, sources: Path, file: Path) -> None:
    """Write all pairs as token ids of the shipped network."""
    from _small_training import SHIPPED, encode, pack, taken

    pairs, _ = all_pairs(data, sources)
    pairs["edited"] = edited_pairs([pair for name in TWINNED for pair in pairs[name]], EDITED_PAIRS, 3)
    tokenizer = (SHIPPED / "tokenizer.json").read_text(encoding="utf-8")
    read, blocks = taken(pairs, PACKED, 1)
    pack(encode(Tokenizer.from_str(tokenizer), read, blocks), tokenizer, file)


FITTED = [
    SOURCE,
    *NATURAL,
    *TWINNED,
    *LONGER,
    "answers_articles",
    "answers_snippets",
    "fm2",
    "fever",
    "hotpot",
    "wice",
]
"""Sources whose validation pairs are like what is judged: claims made in good faith, and near twins. The last layer is fitted on them."""


def fit(data: Path, sources: Path) -> None:
    """Print the weights of the last layer, fitted on validation pairs, each source weighing as much."""
    _, validation = all_pairs(data, sources)
    groups: dict[str, list[Claim]] = defaultdict(list)
    for evidence, claim, label, source in validation:
        groups[source].append((claim, (evidence,), label == 0))
    features, targets, weights = [], [], []
    for source in FITTED:
        rows = joined_rows(groups[source])
        features += [[row[name] for name in JOINED] for row, _ in rows]
        targets += [float(target) for _, target in rows]
        weights += [1 / len(rows)] * len(rows)
    scaled = np.array(weights) * len(weights) / sum(weights)
    beta = fit_logistic(np.array(features), np.array(targets), scaled)
    print("JOINED =", dict(zip(JOINED, (round(float(value), 2) for value in beta), strict=False)))
    print("JOINED_INTERCEPT =", round(float(beta[-1]), 2))


def bar() -> None:
    """Print the highest intercept at which at most `MOST_PASS` of the false pairs pass, the mean over development and calibration
    pairs, and none of the false plain cases."""
    groups = {name: judging_pairs(name) for name in ("development", "calibration")} | {"plain cases": plain_cases()}
    chosen, low, high = small_judge.JOINED_INTERCEPT, -LAST_BAR, LAST_BAR
    try:
        while high - low > 1:  # in steps
            middle = (low + high) // 2
            small_judge.JOINED_INTERCEPT = middle * BAR_STEP
            found = {name: figures(SmallJudge(), pairs, interval=False) for name, pairs in groups.items()}
            print(f"{small_judge.JOINED_INTERCEPT:.2f}:", found, flush=True)
            development, calibration, plain = (one["false called supported"] for one in found.values())
            low, high = (middle, high) if development + calibration <= 2 * MOST_PASS and not plain else (low, middle)
    finally:
        small_judge.JOINED_INTERCEPT = chosen
    print(f"JOINED_INTERCEPT = {low * BAR_STEP:.2f}")


def joined_rows(claims: Sequence[Claim]) -> list[tuple[dict[str, float], bool]]:
    """What the last layer reads of the claims that the network judges."""
    read = [
        (item, read_words(item), target)
        for claim, evidence, target in claims
        for item in (JudgeInput(claim, evidence),)
    ]
    kept = [it for it in read if isinstance(it[1], WordReading) and it[1].features and not it[1].copied]
    pairs = [pair_read(item, words) for item, words, _ in kept]
    shares = network.load_network().probabilities(pairs)
    return [
        (joined_features(words, share[network.SUPPORTED]), target)
        for (_, words, target), share in zip(kept, shares, strict=True)
    ]


def figures(judge, claims: Sequence[Claim], interval: bool = True) -> dict[str, float | str]:
    """Accuracy, false ones called supported, AUROC, and claims a second, of the claims that were judged."""
    started = time.perf_counter()
    found = judge.judge([JudgeInput(claim, evidence) for claim, evidence, _ in claims])
    seconds = time.perf_counter() - started
    judged = [(one, target) for one, (*_, target) in zip(found, claims, strict=True) if one.label is not None]
    said = [one.label in (Label.SUPPORTED, Label.HEDGED_SUPPORTED) for one, _ in judged]
    targets = [target for _, target in judged]
    scores = [float(yes) if one.score is None else one.score for (one, _), yes in zip(judged, said, strict=True)]
    false = [yes for yes, target in zip(said, targets, strict=True) if not target]
    shown = f"{auroc(scores, targets):.3f}"
    if interval:
        shown += " [{:.3f}, {:.3f}]".format(*bootstrap_interval(scores, targets, draws=500))
    return {
        "judged": f"{len(judged)} of {len(claims)}",
        "accuracy": sum(yes == target for yes, target in zip(said, targets, strict=True)) / len(judged),
        "false called supported": sum(false) / len(false),
        "AUROC": shown,
        "claims a second": len(claims) / seconds,
    }


def judging_pairs(name: str) -> list[Claim]:
    rows = [read_claim(row, name) for row in read_jsonl(CASES / f"{name}.jsonl")]
    return [(row.input.completion, row.input.evidence, row.supported) for row in rows]


def plain_cases() -> list[Claim]:
    rows = json.loads((CASES.parent / "lexical.json").read_text(encoding="utf-8"))["meaning"]
    return [(claim, (evidence,), label == "supported") for claim, evidence, label, *_ in rows]


def measured(data: Path, held_out: bool) -> dict[str, list[Claim]]:
    """Claims that took no part in the training of the network."""
    knowledge = [text for _, evidence, label in hotpot(data, 1) for text in evidence if label is Label.SUPPORTED]
    sets: dict[str, list[Claim]] = {
        "development pairs": judging_pairs("development"),
        "WiCE dev": [
            (row["claim"], tuple(row["evidence"]), row["label"] == "supported")
            for row in read_jsonl(data / "wice/claim-dev.jsonl")
        ],
        "edits of HotpotQA": [
            (claim, evidence, label is Label.SUPPORTED) for claim, evidence, label in hotpot(data, 1)[:1500]
        ],
        "claims by edits": [
            (row["claim"], tuple(row["evidence"]), row["label"] == SUPPORTED)
            for row in synthetic_claims(knowledge, 600, seed=1, max_words=22)
        ],
        "HaluEval, every tenth": [
            (claim, evidence, target == 1) for claim, evidence, target in pairs_of(halueval(data), 10)
        ],
    }
    if held_out:
        sets |= {f"{name} pairs": judging_pairs(name) for name in ("held_out", "natural", "plain", "later", "fresh")}
        test = data / "wice/claim-test.jsonl"
        if test.exists():
            rows = read_jsonl(test)
            sets["WiCE test"] = [(row["claim"], tuple(row["evidence"]), row["label"] == "supported") for row in rows]
    return sets


def pairs_of(rows: Sequence, step: int) -> list:
    """Every `step`-th pair of a right and a hallucinated answer."""
    return [row for first in range(0, len(rows), 2 * step) for row in rows[first : first + 2]]


def copies(judge, data: Path) -> dict[str, int]:
    """Labels of the sentences of FActScore's biographies as their own evidence."""
    inputs = [
        JudgeInput(text[start:end], (text,))
        for row in read_jsonl(data / "factscore/ChatGPT.jsonl")
        for text in [row["output"]]
        for start, end in sentence_offsets(text)
    ]
    labels: dict[str, int] = defaultdict(int)
    for one in judge.judge(inputs):
        labels["none" if one.label is None else one.label.value] += 1
    return dict(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the measured claims; for all but `--bar`")
    parser.add_argument("--sources", type=Path, help="folder with the public files")
    parser.add_argument("--train", metavar="BASE", help="train from this folder with gte-small")
    parser.add_argument("--fit", action="store_true", help="fit the last layer")
    parser.add_argument("--bar", action="store_true", help="choose the intercept of the last layer")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the pairs for `_small_training.py`")
    parser.add_argument("--held_out", action="store_true", help="measure on the pairs that nobody tunes on, too")
    parser.add_argument("--out", type=Path, default=Path("runs/small_verifier"))
    args = parser.parse_args()
    if args.bar:
        return bar()
    if args.data is None:
        parser.error("--data: a folder is needed for all but --bar")
    if (args.train or args.fit or args.pack) and args.sources is None:
        parser.error("--train, --fit and --pack need --sources, the folder with the public files")
    if args.train:
        from _small_training import run

        run(args.train, all_pairs(args.data, args.sources)[0], RUNS, args.out)
    elif args.fit:
        fit(args.data, args.sources)
    elif args.pack:
        pack_all(args.data, args.sources, args.pack)
    else:
        judges = {"lexical": LexicalJudge(), "small": SmallJudge()}
        found = {}
        print("| claims | judge | judged | accuracy | false called supported | AUROC | claims a second |")
        print("|---|---|---|---|---|---|---|")
        for name, claims in measured(args.data, args.held_out).items():
            for judge_name, judge in judges.items():
                own = figures(judge, claims)
                found[f"{name}, {judge_name}"] = own
                values = [f"{value:.3f}" if isinstance(value, float) else value for value in own.values()]
                values[-1] = f"{own['claims a second']:.0f}"
                print(f"| {name} | {judge_name} | {' | '.join(values)} |", flush=True)
        for judge_name, judge in judges.items():
            found[f"biographies, {judge_name}"] = copies(judge, args.data)
            print(f"biographies as their own evidence, {judge_name}: {found[f'biographies, {judge_name}']}")
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "figures.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
