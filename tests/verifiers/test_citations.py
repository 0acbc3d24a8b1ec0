"""Attribution: which sentence cites which passages, and what is judged by them."""

import pytest

from hf_factuality.spans import Label
from hf_factuality.verifiers import Citations, CitationsVerifier, VerifierInput, load_verifier
from tests.conftest import searched


PASSAGES = ("Ada Lovelace was born in London.", "Marie Curie was born in Warsaw.", "Marie Curie won two prizes.")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Curie was born in Warsaw [2].", [("Curie was born in Warsaw.", (2,))]),
        ("She was born.[1][3] She won.", [("She was born.", (1, 3)), ("She won.", ())]),
        ("She was born [1, 3]. She won [2; 1].", [("She was born.", (1, 3)), ("She won.", (2, 1))]),
        ("A [1-3] and B [2].", [("A and B.", (1, 2, 3))]),
        ("[2] She was born.", [("She was born.", (2,))]),
        ("She was born. [2]\n[1] She won.", [("She was born.", (2,)), ("She won.", (1,))]),
        ("居里出生在华沙【2】。她得过奖［3］。", [("居里出生在华沙。", (2,)), ("她得过奖。", (3,))]),
        ("It cost [12345] and a[i].", [("It cost [12345] and a[i].", ())]),
        ("Nothing.", [("Nothing.", ())]), ("", []), ("[1]", []),
    ],
)  # fmt: skip
def test_what_a_sentence_cites(text, read):
    row = VerifierInput(text, None, PASSAGES)
    (spans,), ((*passages,),) = Citations().extract([row]), Citations().retrieve([row], [[]])
    assert [(span.claim or span.text(text)) for span in spans] == [says for says, _ in read]
    assert passages == [tuple(PASSAGES[n - 1] for n in numbers if n <= 3) for _, numbers in read]
    assert all(0 <= span.start < span.end <= len(text) for span in spans)


def test_each_sentence_is_judged_by_what_it_cites_alone():
    text = "Marie Curie was born in Warsaw [2]. Marie Curie won two prizes [1]. Ada Lovelace was born in London. She lived in Bern [7]."
    (found,) = CitationsVerifier().verify([VerifierInput(text, "Who?", PASSAGES)])
    assert [span.label for span in found.spans][:1] == [Label.SUPPORTED]
    assert found.spans[1].label is not Label.SUPPORTED  # true, but not by the passage that it cites
    assert [span.label for span in found.spans[2:]] == [Label.UNVERIFIABLE] * 2
    assert text[found.spans[0].start : found.spans[0].end].startswith("Marie Curie was born in Warsaw")


def test_by_name_with_the_judge_of_another(tmp_path):
    verifier = load_verifier("citations:lexical", threshold=0.9)
    assert verifier.judge.threshold == 0.9 and verifier.requires_evidence
    with pytest.raises(ValueError, match="'compare:x'"):
        load_verifier("citations:compare:x", base_url="http://localhost:1")
    with pytest.raises(ValueError, match="unknown verifier 'lexicl'"):
        load_verifier("citations:lexicl")


@searched(10_000, 30_000)
def test_many_brackets_take_no_quadratic_time(count):
    (found,) = CitationsVerifier().verify([VerifierInput("Ulm [1, " * count + "Bern [1].", None, PASSAGES)])
    assert len(found.spans) >= 1
    text = "Ulm is here [1-999]. [2] It is so.[3]\n" * (count // 10)
    (found,) = CitationsVerifier().verify([VerifierInput(text, None, PASSAGES)])
    assert len(found.spans) == count // 5 and all(span.claim in ("Ulm is here.", None) for span in found.spans)
