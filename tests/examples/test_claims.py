"""From a builder's run to rows of claims."""

import json

import pytest

from hf_factuality.data.builder import judged_responses
from hf_factuality.data.claims import read_claims
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import GivenResponses
from hf_factuality.errors import DataError
from hf_factuality.spans import Label, LabeledSpan, Verification


QUESTIONS = read_questions(
    [
        {"id": "ada", "question": "Who is Ada?", "topic": "Ada"},
        {"id": 2, "question": "Who is Bo?"},
        {"id": 3, "question": "?"},
    ]
)


class Scripted:
    """Labels by the first letter of each sentence, which ends with a full stop."""

    requires_evidence = False
    labels = {"T": Label.SUPPORTED, "t": Label.SUPPORTED, "h": Label.HEDGED_SUPPORTED, "F": Label.CONTRADICTED,
              "g": Label.HEDGED_CONTRADICTED, "n": Label.NO_FACT, "u": Label.UNVERIFIABLE, "?": None}  # fmt: skip

    def verify(self, inputs):
        found = []
        for item in inputs:
            starts = [
                place for place in range(len(item.completion)) if place == 0 or item.completion[place - 1] == "."
            ]
            spans = [
                LabeledSpan(s, item.completion.index(".", s) + 1, self.labels[item.completion[s]]) for s in starts
            ]
            found.append(Verification(tuple(spans)))
        return found


def run(folder, responses):
    settings = {"seed": 0, "questions_per_batch": 2, "patience": 0.0, "progress": False, "overlap": None}
    with judged_responses(QUESTIONS, GivenResponses(responses), Scripted(), folder, **settings):
        pass


def test_claims_count_once_per_question(tmp_path):
    run(
        tmp_path,
        {"ada": ["T one.F two.", "t  ONE.h three.n four.u five.?.", None], "2": ["T one.g six."], "3": ["n a."]},
    )
    rows = read_claims(tmp_path, QUESTIONS).to_list()
    assert [(row["topic"], row["question"], row["claim"], row["label"]) for row in rows] == [
        ("Ada", "Who is Ada?", "T one.", "supported"),
        ("Ada", "Who is Ada?", "F two.", "contradicted"),
        ("Ada", "Who is Ada?", "h three.", "supported"),
        ("2", "Who is Bo?", "T one.", "supported"),
        ("2", "Who is Bo?", "g six.", "contradicted"),
    ]
    assert read_claims(tmp_path, QUESTIONS[1:]).num_rows == 2, "other questions of the run are left out"
    with pytest.raises(DataError, match="no supported or contradicted claim of these 1 questions"):
        read_claims(tmp_path, QUESTIONS[2:])


def test_labels_that_disagree_and_judgements_that_failed_are_left_out(tmp_path):
    items = [[["One. Two.", True], ["one. Three.", True], ["Three.", True], None]]
    spans = [[(0, 4, "supported"), (5, 9, "supported")], [(0, 4, "contradicted"), (5, 11, "contradicted")]]
    verdicts = [Verification(tuple(LabeledSpan(s, e, Label(label)) for s, e, label in own)).to_dict() for own in spans]
    failed = Verification(error="down").to_dict()
    atomic = Verification(claims=(LabeledSpan(0, 9, Label.CONTRADICTED, claim="Two is 三."),)).to_dict()
    for name, rows in (("responses", items), ("verifications", [[*verdicts, failed, None]])):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"id": "ada", "items": row}) + "\n" for row in rows), encoding="utf-8"
        )
    assert [(r["claim"], r["label"]) for r in read_claims(tmp_path, QUESTIONS)] == [
        ("Two.", "supported"),
        ("Three.", "contradicted"),
    ]
    # A later line replaces an earlier one; atomic claims stand for the spans.
    with (tmp_path / "verifications.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "ada", "items": [atomic]}) + "\n")
    assert [(r["claim"], r["label"]) for r in read_claims(tmp_path, QUESTIONS)] == [("Two is 三.", "contradicted")]
    with pytest.raises(FileNotFoundError):
        read_claims(tmp_path / "nowhere", QUESTIONS)
