"""The released form of pairs: round trips, and sentences whose white space or letters are not those of the text."""

import json

import pytest
from datasets import Dataset

from hf_factuality.data.anah_format import ANAHReport, place_sentences, read_anah, write_anah
from hf_factuality.data.preferences import pair_features
from hf_factuality.errors import DataError
from hf_factuality.spans import Label
from tests.data.cases import cases


ENGLISH = "Marie Curie was born in Warsaw in 1867. She won two Nobel Prizes! Her husband was Pierre."
CHINESE = "居里夫人1867年出生于华沙。她两次获得诺贝尔奖！她的丈夫是皮埃尔。"
CUT_ENGLISH = [(0, 39), (40, 65), (66, 89)]
CUT_CHINESE = [(0, 15), (15, 25), (25, 34)]


def row(number, chosen, cuts, rejected, other_cuts, labels):
    spans = [
        [{"start": a, "end": b, "label": label, "score": None, "claim": None, "evidence": None} for (a, b), label in
         zip(places, names, strict=True)]
        for places, names in zip((cuts, other_cuts), labels, strict=True)
    ]  # fmt: skip
    return {
        "id": f"p{number}", "topic": "Curie", "prompt": [{"role": "user", "content": "Who was she? 她是谁？"}],
        "chosen": [{"role": "assistant", "content": chosen}], "chosen_spans": spans[0],
        "rejected": [{"role": "assistant", "content": rejected}], "rejected_spans": spans[1],
        "chosen_score": None, "rejected_score": None,
    }  # fmt: skip


ROWS = [
    row(0, ENGLISH, CUT_ENGLISH, CHINESE, CUT_CHINESE, [["supported", "no_fact", "contradicted"], ["unverifiable", "supported", "no_fact"]]),
    row(1, CHINESE, CUT_CHINESE, ENGLISH, CUT_ENGLISH, [["supported", None, "no_fact"], [None, "contradicted", "contradicted"]]),
]  # fmt: skip


def labels(dataset, side):
    return [[span["label"] for span in pair[f"{side}_spans"]] for pair in dataset]


def test_cuts_are_those_of_the_test():
    assert [ENGLISH[a:b][-1] for a, b in CUT_ENGLISH] == [".", "!", "."]
    assert [CHINESE[a:b][-1] for a, b in CUT_CHINESE] == ["。", "！", "。"]


@pytest.mark.parametrize("types", ["anah", "mask_dpo"])
def test_round_trip(tmp_path, types):
    path = tmp_path / "pairs.jsonl"
    assert write_anah(Dataset.from_list(ROWS, features=pair_features()), path, types=types, unjudged="null") == 2
    report = ANAHReport()
    found = read_anah(path, report)
    assert found.features == pair_features()
    assert (report.pairs, report.sentences, report.exact, report.unplaced) == (2, 12, 12, 0)
    for given, pair in zip(ROWS, found, strict=True):
        for name in ("id", "topic", "prompt", "chosen", "rejected"):
            assert pair[name] == given[name]
        for side in ("chosen", "rejected"):
            for old, new in zip(given[f"{side}_spans"], pair[f"{side}_spans"], strict=True):
                assert (old["start"], old["end"]) == (new["start"], new["end"])
    if types == "anah":
        assert labels(found, "chosen") == [["supported", "no_fact", "contradicted"], ["supported", None, "no_fact"]]
        assert found["chosen_score"] == [pytest.approx(2 / 3), 1.0]
    else:
        assert labels(found, "chosen") == [
            ["supported", "supported", "contradicted"],
            ["supported", None, "supported"],
        ]
        assert labels(found, "rejected")[0] == ["contradicted", "supported", "supported"]
    assert found["rejected_score"] == [pytest.approx(2 / 3), 0.0]


def test_the_written_file_is_what_the_released_code_reads(tmp_path):
    write_anah(ROWS, tmp_path / "pairs.jsonl")
    first, second = map(json.loads, (tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines())
    assert first["chosen_item"] == {
        "sents": ["Marie Curie was born in Warsaw in 1867.", "She won two Nobel Prizes!", "Her husband was Pierre."],
        "type": ["no_hallucination", "no_hallucination", "hallucination"],
    }
    assert first["rejected_item"]["type"] == ["hallucination", "no_hallucination", "no_hallucination"]
    # Unjudged: masked on either side by the released code's rule.
    assert second["chosen_item"]["type"][1] == "hallucination"
    assert second["rejected_item"]["type"][0] == "no_hallucination"
    assert first["chosen"] == [{"role": "assistant", "content": ENGLISH}]


@cases("released_form", "sentences")
def test_sentences_are_found_in_the_text(case):
    report = ANAHReport()
    found = place_sentences(case["sents"], case["text"], report)
    assert [place and list(place) for place in found] == case["expected"]
    counts = {name: getattr(report, name) for name in ("exact", "spaced", "aligned", "unplaced")}
    assert " ".join(f"{name} {count}" for name, count in counts.items() if count) == case["how"]


def sample(**changes):
    return {
        "prompt": [{"role": "user", "content": "Count."}],
        "chosen": [{"role": "assistant", "content": "One. Two. Three."}],
        "rejected": [{"role": "assistant", "content": "Four."}],
        "chosen_item": {"sents": ["One.", "Elephants trumpet loudly.", "Three."], "type": ["ok", "ok", "nofact"]},
        "rejected_item": {"sents": ["Four."], "type": ["Hallucination"]},
        **changes,
    }


def test_what_cannot_be_placed_or_read_is_unjudged_and_counted():
    report = ANAHReport()
    bad = sample(rejected_item={"sents": ["Four."], "type": ["maybe"]})
    found = read_anah([sample(), bad], report)
    # "Two." is where the lost sentence must have been: no mask counts it, whatever happens to text outside of spans.
    assert [(s["start"], s["end"], s["label"]) for s in found[0]["chosen_spans"]] == [
        (0, 4, "supported"), (5, 9, None), (10, 16, "no_fact"),
    ]  # fmt: skip
    assert found["rejected_score"] == [0.0, None] and found[1]["rejected_spans"][0]["label"] is None
    assert (report.unplaced, dict(report.unknown_types)) == (2, {"maybe": 1})
    assert found["id"] == ["0", "1"] and found["topic"] == [None, None]


@cases("released_form", "bad rows")
def test_bad_rows_are_named(case):
    with pytest.raises(DataError, match=case["message"]):
        read_anah([sample(**case["changes"])])


def test_bad_files(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n{\n")
    with pytest.raises(DataError, match="a.jsonl, line 2 is not JSON"):
        read_anah(tmp_path / "a.jsonl")
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(DataError, match="there are no pairs"):
        read_anah(tmp_path / "b.json")
    (tmp_path / "c.json").write_text(json.dumps([sample()]))
    assert len(read_anah(tmp_path / "c.json")) == 1
    overlapping = {
        **ROWS[0],
        "chosen_spans": [{"start": 0, "end": 9, "label": None}, {"start": 3, "end": 12, "label": None}],
    }
    with pytest.raises(DataError, match=r"\[3, 12\) of chosen overlaps"):
        write_anah([overlapping], tmp_path / "d.jsonl")
    assert not (tmp_path / "d.jsonl").exists()


def test_labels_of_the_trainer(tmp_path):
    """Every label of ours has a type in both sets, and the masks are the same after the way through the file."""
    text = "".join(f"S{number}." for number in range(len(Label)))
    spans = [{"start": 3 * n, "end": 3 * n + 3, "label": label.value} for n, label in enumerate(Label)]
    pair = {"prompt": ROWS[0]["prompt"]}
    for side in ("chosen", "rejected"):
        pair |= {side: [{"role": "assistant", "content": text}], f"{side}_spans": spans}
    false = {Label.UNVERIFIABLE, Label.HEDGED_CONTRADICTED, Label.CONTRADICTED}
    for types in ("anah", "mask_dpo"):
        write_anah([pair], tmp_path / "x.jsonl", types=types)
        (found,) = read_anah(tmp_path / "x.jsonl")
        assert [Label(s["label"]) in false for s in found["chosen_spans"]] == [label in false for label in Label]
