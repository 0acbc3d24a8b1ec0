"""Judged answers as JUnit's XML, which CI systems show: a test case per answer, and one per threshold.

The form is the strict one of Ant's task, in which every test suite has its host, time and outputs and a test case one result at
most; the readers of other tools, which are laxer, take it too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from hf_factuality.evaluation.claim_lines import claim_lines, shortened
from hf_factuality.evaluation.worst_answers import rank_answer
from hf_factuality.reading.same import distinct_units
from hf_factuality.verifiers.service import JudgedRow


# What XML 1.0 cannot hold, not even escaped.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_Case = tuple[str, str, str | None, str, str]
"""Name, class, kind of the result (`None`: passed), message, text."""


class JUnitCases:
    """Test cases of the answers, as they are judged.

    Args:
        least (`float`, *optional*):
            Precision below which an answer has failed; without, none does.
    """

    def __init__(self, least: float | None):
        self._least = least
        self._cases: list[_Case] = []
        self._began = time.monotonic()
        self._start = datetime.now(UTC)

    def add(self, judged: JudgedRow) -> None:
        row, turn = judged.row, judged.row.turn
        group = "answers" if turn is None else f"answers.{turn.row}"
        name = f"{row.key}: {shortened(row.input.question, 100)}" if row.input.question else str(row.key)
        kind, message = self._result(judged)
        spans = distinct_units(judged.verification.spans, row.input.completion)
        text = "\n".join(claim_lines(row.input.completion, spans)) if kind else ""
        self._cases.append((name, group, kind, message, text))

    def _result(self, judged: JudgedRow) -> tuple[str | None, str]:
        """What became of an answer. What is not known is skipped: it is neither right nor wrong, and shown as such."""
        rank, said = rank_answer(judged)
        if rank > 1:  # which no precision is
            return "skipped", said
        if self._least is not None and rank < self._least:
            return "failure", f"{said}; at least {self._least:g} is asked for"
        return ("skipped" if any(it.label is None for it in judged.found.spans) else None), said

    def write(self, path: Path, name: str, gates: Sequence[tuple[str, str]], failures: Sequence[str]) -> None:
        """Write the file. `gates` are thresholds and the score that each is of (`""`: what was not judged)."""
        thresholds: list[_Case] = []
        for title, score in gates:
            broken = [it for it in failures if (it.startswith(f"{score} ") if score else "could not be judged" in it)]
            thresholds.append(
                (title, "thresholds", "failure" if broken else None, "; ".join(broken), "\n".join(broken))
            )
        root = ElementTree.Element("testsuites")
        took = time.monotonic() - self._began
        for number, (suite, cases, seconds) in enumerate(
            [("answers", self._cases, took), *([("thresholds", thresholds, 0.0)] if thresholds else [])]
        ):
            root.append(self._suite(number, suite, name, cases, seconds))
        ElementTree.indent(root)
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)

    def _suite(
        self, number: int, suite: str, name: str, cases: Sequence[_Case], seconds: float
    ) -> ElementTree.Element:
        kinds = [kind for _, _, kind, _, _ in cases]
        element = ElementTree.Element(
            "testsuite",
            id=str(number),
            name=suite,
            package="hf_factuality",
            timestamp=self._start.strftime("%Y-%m-%dT%H:%M:%S"),
            hostname="localhost",
            tests=str(len(cases)),
            failures=str(kinds.count("failure")),
            errors="0",
            skipped=str(kinds.count("skipped")),
            time=f"{seconds:.3f}",
        )
        properties = ElementTree.SubElement(element, "properties")
        ElementTree.SubElement(properties, "property", name="file", value=_xml(name))
        # Answers are judged in batches, so that the time of one is that of the mean.
        each = f"{seconds / max(len(cases), 1):.3f}"
        for title, group, kind, message, text in cases:
            case = ElementTree.SubElement(element, "testcase", name=_xml(title), classname=_xml(group), time=each)
            if kind == "skipped":
                ElementTree.SubElement(case, kind, message=_xml(message)).text = _xml(text)
            elif kind:
                ElementTree.SubElement(case, kind, message=_xml(message), type="factuality").text = _xml(text)
        ElementTree.SubElement(element, "system-out")
        ElementTree.SubElement(element, "system-err")
        return element


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
