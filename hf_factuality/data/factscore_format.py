"""FActScore's human annotation, read into predictions of the metric `factscore`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.io.rows import read_rows


def read_factscore(path: str | Path) -> list[dict[str, Any]]:
    """Responses with the labels of their atomic facts, from a file of FActScore's labelled data.

    The files are `InstructGPT.jsonl`, `ChatGPT.jsonl` and `PerplexityAI.jsonl` of Min et al. 2023 (arXiv 2305.14251).
    Annotators wrote no facts for sentences that they held for irrelevant; what the model extracted there counts as
    irrelevant facts (`IR`). Only so do the published scores come out.

    Args:
        path (`str` or `Path`):
            A JSON Lines file.

    Returns:
        `list[dict]`: per response `text` and `claims`, pairs of fact and label (`S`, `NS`, `IR`); one without annotation
        has `abstained` in place of claims.

    Raises:
        `DataError`: a line is not of that form.
        `OSError`: the file cannot be read.

    Example:

        >>> evaluate.load("factscore").compute(predictions=read_factscore("ChatGPT.jsonl"), gamma=0, judge="human")
    """
    found = []
    for number, row in read_rows(path):
        try:
            prediction: dict[str, Any] = {"text": row["output"]}
            if row["annotations"] is None:
                prediction["abstained"] = True
            else:
                prediction["claims"] = [fact for sentence in row["annotations"] for fact in _facts(sentence)]
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number} is no annotation of FActScore: {error!r}") from None
        found.append(prediction)
    return found


def _facts(sentence: dict[str, Any]) -> list[list[str]]:
    human = [[fact["text"], fact["label"]] for fact in sentence["human-atomic-facts"] or ()]
    return human or [[fact["text"], "IR"] for fact in sentence["model-atomic-facts"] or ()]
