"""Code of a user, which a type checker reads (`make lint`) and nobody runs: public names have types, and none is `Any`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_type

from hf_factuality import (
    Label,
    LabeledSpan,
    Verification,
    Verifier,
    VerifierInput,
    agree,
    evaluate,
    load_verifier,
    verify,
)
from hf_factuality.reading import read


def judge() -> None:
    result = verify(
        "answers.jsonl", evidence=Path("evidence.jsonl"), metrics=["factscore"], fail_under={"factscore": 0.5}
    )
    assert_type(result.precision, float | None)
    assert_type(result.failures, list[str])
    assert_type(result.rows[0].verification, Verification | None)
    assert_type(load_verifier("lexical"), Verifier)
    verify(
        [{"completion": "Ulm lies on the Danube.", "evidence": "Ulm lies on the Danube."}],
        verifier=load_verifier("lexical"),
    )


def trust() -> None:
    result = agree(["lexical", load_verifier("lexical")], Path("labels.jsonl"), group_column="answer")
    assert_type(result.verifiers[0].figures["kappa"].value, float | None)
    assert_type(result.verifiers[0].kinds["date"]["accuracy"].n, int)
    assert_type(result.to_dict(), dict[str, Any])


def measure() -> None:
    result = evaluate(model="outputs", benchmark="gsm8k", limit=10)
    assert_type(result.results, list[dict[str, Any]])
    assert_type(result.out, Path)


class Silent:
    """Satisfies the protocol of verifiers."""

    requires_evidence = False

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        return [Verification(spans=(LabeledSpan(0, 1, Label.NO_FACT),)) for _ in inputs]


def own() -> Verifier:
    return Silent()


def spans(found: Verification) -> None:
    for span in found.spans:
        assert_type(span, LabeledSpan)
        assert_type(span.label, Label | None)


def reading() -> None:
    assert_type(read("Ulm lies here.").declines, bool)
