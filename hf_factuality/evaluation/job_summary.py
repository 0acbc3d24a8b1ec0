"""The summary of a job in CI as Markdown: the scores, what is below a threshold, and the answers with the lowest precision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hf_factuality.evaluation.claim_lines import markdown_claim, shortened, worst_claims
from hf_factuality.evaluation.worst_answers import WorstSamples
from hf_factuality.hub.tables import format_table
from hf_factuality.io.markdown import escaped
from hf_factuality.report import ReportSample
from hf_factuality.spans import Verification


# GitHub takes a megabyte per step.
_TURNS, _CLAIMS, _LIMIT = 10, 5, 300


def append_summary(
    path: Path,
    name: str,
    table: Sequence[Mapping[str, str]],
    failures: Sequence[str],
    notes: Sequence[str],
    worst: WorstSamples,
) -> None:
    """Append the summary to a file, as steps of a job share one."""
    lines = [f"## Factuality of {escaped(name)}", ""]
    lines += [f"**Failed:** {escaped(it)}\n" for it in failures]
    lines += [format_table(table, markdown=True), "", *(f"{escaped(it)}\n" for it in notes)]
    samples = [
        it for it in worst.samples if any(worst_claims(found.spans) or found.error for _, _, found in it.completions)
    ]
    if samples:
        lines += [f"### {worst.shown}: those with claims that are not supported", ""]
        for sample in samples:
            lines += [*_answer(sample), ""]
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write("\n".join(lines).rstrip() + "\n\n")


def _is_shown(completion: tuple[str, str, Verification]) -> bool:
    """Whether an answer, or a turn, has something to show: a claim that is not supported, or why it was not judged."""
    return bool(completion[2].error or worst_claims(completion[2].spans))


def _answer(sample: ReportSample) -> Iterator[str]:
    yield f"**{_text(sample.question)}**"
    turns = list(filter(_is_shown, sample.completions))
    if len(turns) > _TURNS:
        yield f"- the first {_TURNS} of {len(turns)} turns with such claims:"
    for heading, text, found in turns[:_TURNS]:
        yield f"- {_text(heading)}"
        claims = worst_claims(found.spans)
        for span in claims[:_CLAIMS]:
            yield f"  {markdown_claim(text, span, _text)}"
        if len(claims) > _CLAIMS:
            yield f"  - and {len(claims) - _CLAIMS} more"


def _text(text: str) -> str:
    """Somebody's text. Accounts and issues that it names are not linked: a summary may be posted as a comment, which tells them."""
    return re.sub(r"[@#](?=\w)", "\\g<0>\u2060", escaped(shortened(text, _LIMIT)))
