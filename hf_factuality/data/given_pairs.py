"""Preference pairs that exist, such as a file for DPO, labelled sentence by sentence for Mask-DPO.

Who is preferred stays as it was: the verifier labels both answers, and does not choose. `builder.py` says what lies in the
folder of a run.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.data.builder import DatasetKind, judged_responses, verified_responses
from hf_factuality.data.pairs import hallucination_free_share
from hf_factuality.data.questions import PreferenceQuestion, read_questions
from hf_factuality.data.reading import messages_of
from hf_factuality.data.sampling import GivenResponses
from hf_factuality.errors import DataError
from hf_factuality.functional.preference import FREE_OF_HALLUCINATION
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier


if TYPE_CHECKING:
    from datasets import Dataset


_SIDES = ("chosen", "rejected")
_COLUMNS = "id prompt chosen rejected chosen_spans rejected_spans chosen_score rejected_score topic"
REASONS = {
    "empty": "pairs with an answer that is empty",
    "identical": "pairs of identical texts",
    "several_turns": "pairs whose sides are not two answers to one conversation",
    "not_judged": "pairs with an answer of which no sentence could be judged",
}
KIND = DatasetKind("pairs.parquet", "preference pairs", "pair", REASONS, """# Fine-grained preference pairs

{pairs} preference pairs with a verdict on every sentence, for [Mask-DPO](https://huggingface.co/papers/2503.02846): the pairs
are given, and which answer is preferred was not changed; a verifier labelled both with hf_factuality {version}. `chosen_spans`
and `rejected_spans` are half-open character ranges of `chosen` and `rejected` (of their content, where these are messages), with
a label each. The verifier finds fewer hallucinated sentences in the rejected answer of {contrary} of the pairs. Mask-DPO learns
nothing from {without_signal} of them, whose chosen answer has no correct sentence or whose rejected answer has no hallucinated
one.

**The labels are a model's or a program's, not people's.** They are as good as the verifier below.
""", ("preference", "mask-dpo", "factuality"), origin="that existed before")  # fmt: skip
# How a turn of the assistant begins in a dialogue that is one text: "Assistant:" on its own line, or the markup of a chat.
_ANSWER = re.compile(
    r"(?:(?:\A|\n)[ \t]*(?:assistant|gpt|bot|model|answer|ai)[ \t]*:|<\|im_start\|>assistant\n|<\|assistant\|>\n?"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>\n*|<start_of_turn>model\n|\[/INST\])",
    re.IGNORECASE,
)
_END = re.compile(r"<\|(?:im_end|eot_id|end)\|>|<end_of_turn>|</s>")
_USER = re.compile(
    r"(?:(?:\A|\n)[ \t]*(?:human|user|question|prompter)[ \t]*:|<\|im_start\|>user\n|<\|user\|>\n?"
    r"|<\|start_header_id\|>user<\|end_header_id\|>\n*|<start_of_turn>user\n|\[INST\])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class GivenPair(PreferenceQuestion):
    """A pair: what was asked, both answers, the prompt as text if the pair is text, and why it cannot be labelled, if so (one of
    the reasons `"empty"`, `"identical"` and `"several_turns"`)."""

    chosen: str = ""
    rejected: str = ""
    text: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class GivenPairConfig:
    """There is nothing to choose: every pair that can be judged is kept."""


def read_pairs(rows: Sequence[Mapping[str, Any]], name: str = "the dataset") -> list[GivenPair]:
    """Pairs of a preference dataset, in any of the forms that are common for DPO.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            Rows with `chosen` and `rejected`: texts or messages, the answer alone or the whole conversation. The rest of the
            conversation is `prompt` (text or messages), `question` or `instruction` (text), with the text `system` before it if
            there is one; where there is none of these, it is what both sides begin with. Optional are `id`, `topic` and evidence
            as [`read_questions`] takes them; other columns are left out.
        name (`str`, *optional*):
            Of the dataset, for errors.

    Returns:
        `list[GivenPair]`: text where a prompt is text or implied in texts, else messages. An id that occurs twice is replaced by
        the numbers of the rows.

    Raises:
        `DataError`: no rows, a row that is no pair, text and messages in one dataset.
    """
    found, forms, sources = [], {}, []
    for number, row in enumerate(rows):
        place = f"row {number} of {name}"
        if not isinstance(row, Mapping) or not all(side in row for side in _SIDES):
            has = sorted(row) if isinstance(row, Mapping) else f"{row!r:.100}"
            raise DataError(f"{place} is no pair: it needs `chosen` and `rejected`; it has {has}")
        prompt, text, answers, problem = _parts(row, place)
        if any(row[side] for side in _SIDES):  # else nothing tells
            forms.setdefault(text is not None, place)
        if len(forms) == 2:
            raise DataError(f"{forms[False]} has messages and {forms[True]} text; give all rows one form")
        if problem is None and not all(answer.strip() for answer in answers):
            problem = "empty"
        if problem is None and answers[0].strip() == answers[1].strip():
            problem = "identical"
        asked = _question(prompt, text)
        # A prompt that is not there, as of a pair with a problem, is no reason to refuse the whole file.
        shown = {**row, "prompt": prompt or [{"role": "user", "content": ""}], "question": asked or None}
        sources.append({key: value for key, value in shown.items() if key != "id" or value is not None})
        found.append((answers, text, problem))
    ids = [str(row["id"]) for row in sources if "id" in row]
    if len(set(ids)) < len(sources):
        sources = [{key: value for key, value in row.items() if key != "id"} for row in sources]
    questions = read_questions(sources, name)
    return [
        GivenPair(**{field: getattr(one, field) for field in one.__dataclass_fields__} | {"row": dict(rows[number])},
                  chosen=answers[0], rejected=answers[1], text=text, problem=problem)
        for number, (one, (answers, text, problem)) in enumerate(zip(questions, found, strict=True))
    ]  # fmt: skip


def label_pairs(
    pairs: Sequence[GivenPair],
    verifier: Verifier,
    folder: str | os.PathLike,
    *,
    name: str | None = None,
    **run: Any,
) -> Dataset:
    """Label the sentences of preference pairs that exist, for [`~hf_factuality.MaskDPOTrainer`].

    Started again on the same folder it continues, as [`~hf_factuality.data.preferences_from`] does. Pairs that cannot be judged
    are left out and counted; all others are kept, whatever the labels say.

    Args:
        pairs (`Sequence[GivenPair]`):
            See [`read_pairs`].
        verifier ([`~hf_factuality.verifiers.base.Verifier`]):
            Labels the sentences of both answers.
        folder (`str` or `PathLike`):
            Where the run lives.
        name (`str`, *optional*):
            Who wrote the answers, for the card.
        **run:
            As for [`~hf_factuality.data.preferences_from`].

    Returns:
        `datasets.Dataset`: its columns; `prompt`, `chosen` and `rejected` are texts where the pairs are texts.

    Raises:
        `DataError`: no pair can be labelled; the folder holds another run. `JudgingError`: as there.
    """
    counts = Counter(dict.fromkeys(REASONS, 0), contrary=0, without_signal=0)
    counts.update(pair.problem for pair in pairs if pair.problem)
    usable = [pair for pair in pairs if not pair.problem]
    if not usable:
        why = "; ".join(f"{counts[reason]} {what}" for reason, what in REASONS.items() if counts[reason])
        raise DataError(f"none of {len(pairs)} pairs can be labelled: {why}")
    given = GivenResponses({pair.id: [pair.chosen, pair.rejected] for pair in usable}, name)
    rows = []
    with judged_responses(usable, given, verifier, folder, KIND.file, **run) as journals:
        for pair in usable:
            row = _row(pair, [verdict for _, verdict in verified_responses(pair, *journals, counts)], counts)
            rows += [] if row is None else [row]
    report = {
        "questions": len(pairs), "pairs": len(rows), **counts,
        **{f"{side}_score": sum(row[f"{side}_score"] for row in rows) / len(rows) for side in _SIDES if rows},
    }  # fmt: skip
    texts = frozenset(("prompt", *_SIDES) if usable[0].text is not None else ())
    return KIND.write(Path(folder), rows, _COLUMNS, report, GivenPairConfig(), texts=texts)


def _row(pair: GivenPair, verdicts: Sequence[Verification | None], counts: Counter) -> dict[str, Any] | None:
    """The row of a pair; `None`, and counted, if one of its answers was not judged."""
    spans = [() if it is None or it.error else it.spans for it in verdicts]
    scores = [hallucination_free_share(own) for own in spans]
    if None in scores:
        counts["not_judged"] += 1
        return None
    counts["contrary"] += scores[0] < scores[1]
    right = any(span.label in FREE_OF_HALLUCINATION for span in spans[0] if span.label is not None)
    wrong = any(span.label not in FREE_OF_HALLUCINATION for span in spans[1] if span.label is not None)
    counts["without_signal"] += not (right and wrong)
    row = pair.columns()
    if pair.text is not None:
        row["prompt"] = pair.text
    for side, own, score in zip(_SIDES, spans, scores, strict=True):
        answer = getattr(pair, side)
        row[side] = answer if pair.text is not None else [{"role": "assistant", "content": answer}]
        row[f"{side}_spans"] = [span.to_dict() for span in own]
        row[f"{side}_score"] = score
    return row


def _parts(row: Mapping[str, Any], place: str) -> tuple[list[dict[str, str]], str | None, tuple[str, str], str | None]:
    """Conversation before the answers, the same as text if the pair is text, both answers, and what is wrong with them."""
    sides = [row[side] for side in _SIDES]
    asked = next((row[key] for key in ("prompt", "question", "instruction") if row.get(key)), None)
    begun = [{"role": "user", "content": asked}] if isinstance(asked, str) else messages_of(asked or [])
    if asked is not None and not begun:
        raise DataError(f"{place}: `prompt` must be text or messages of text, got {asked!r:.100}")
    system = row.get("system")
    if isinstance(system, str) and system.strip() and (not begun or begun[0]["role"] != "system"):
        begun = [{"role": "system", "content": system}, *begun]
    if all(side is None or isinstance(side, str) for side in sides):
        texts = tuple(side or "" for side in sides)
        plain = (
            isinstance(row.get("prompt"), str) and row["prompt"] and not (isinstance(system, str) and system.strip())
        )
        if plain:
            return begun, row["prompt"], texts, None
        if asked is not None:
            return begun, None, texts, None
        text, answers, problem = _split(*texts)
        return [{"role": "user", "content": text}], text, answers, problem
    turns = [messages_of(side or []) if not isinstance(side, str) else [] for side in sides]
    if any(side and not own for side, own in zip(sides, turns, strict=True)):
        raise DataError(f"{place}: `chosen` and `rejected` must both be text, or messages whose content is text")
    if not all(turns):
        return begun, None, ("", ""), "empty"
    before, last = [own[:-1] for own in turns], [own[-1] for own in turns]
    answers = tuple(message["content"] for message in last)
    one_answer = before[0] == before[1] and all(message["role"] == "assistant" for message in last)
    # Where the sides are whole conversations, a prompt beside them tells a part of these again.
    spoken = [[it for it in turn if it["role"] != "system"] for turn in (begun, before[0])]
    again = isinstance(asked, str) or spoken[1][: len(spoken[0])] == spoken[0]
    conversation = before[0] if before[0] and again else [*begun, *before[0]]
    if begun and begun[0]["role"] == "system" and conversation[0]["role"] != "system":
        conversation = [begun[0], *conversation]
    problem = None if one_answer and conversation else "several_turns"
    return conversation, None, answers, problem


def _split(chosen: str, rejected: str) -> tuple[str, tuple[str, str], str | None]:
    """Prompt and answers of two texts that hold it both: the prompt ends at the last beginning of an answer that they share, or
    else at the last line that they share, so that two answers with the same first words lose none of them."""
    same = os.path.commonprefix([chosen, rejected])
    ends = [match.end() for match in _ANSWER.finditer(same)]
    end = ends[-1] if ends else same.rfind("\n") + 1
    answers = chosen[end:], rejected[end:]
    problem = None if end and not any(_USER.search(answer) for answer in answers) else "several_turns"
    return same[:end], answers, problem


def _question(prompt: Sequence[Mapping[str, str]], text: str | None) -> str:
    """What a verifier is told was asked: the last turn of the user."""
    if text is None:
        return next((message["content"] for message in reversed(prompt) if message["role"] == "user"), "")
    turn = [match.end() for match in _USER.finditer(text)]
    asked = text[turn[-1] :] if turn else text
    return _END.sub("", _ANSWER.split(asked)[0]).strip()
