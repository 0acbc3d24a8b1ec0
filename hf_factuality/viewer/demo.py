"""`hf_factuality.demo`: a page on which completions are pasted, and painted by a verifier."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from hf_factuality.evaluation.verify import verify
from hf_factuality.io.refusals import REFUSALS
from hf_factuality.io.secrets import redact
from hf_factuality.report import ReportSample, escape, render_report
from hf_factuality.spans import Verification
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.viewer import DEMO_VERIFIERS
from hf_factuality.viewer.app import frame_of
from hf_factuality.viewer.view import require_gradio, serve_app


CHARACTERS = 50_000
"""Characters of a field, at most."""
_EXAMPLE = (
    "Who was Marie Curie?",
    "Marie Curie was born in Warsaw in 1867. She won two Nobel Prizes. She won the Nobel Prize in Chemistry in 1921. She lived in Paris.",
    "Marie Curie (born 7 November 1867 in Warsaw) was a physicist and chemist.\n\n"
    "She won the Nobel Prize in Physics in 1903 and the Nobel Prize in Chemistry in 1911, two Nobel Prizes.",
)


def demo(
    verifier: str | Sequence[str] = DEMO_VERIFIERS, *, port: int = 7860, on_start: Callable[[str], None] | None = None
) -> None:
    """Show a page to try verifiers in a browser, until the process is told to end (SIGTERM, Ctrl-C).

    Needs `pip install hf_factuality[view]`. Only this machine can reach the page.

    Args:
        verifier (`str` or `Sequence[str]`, *optional*, defaults to `("lexical", "small")`):
            Names for [`load_verifier`] to choose from. Each is loaded when it is first used, but the first one at once.
        port (`int`, *optional*, defaults to 7860):
            Port to listen at; 0 for a free one.
        on_start (`Callable[[str], None]`, *optional*):
            Called with the address once the page can be opened.

    Raises:
        `ValueError`: there is no verifier of a name, or an argument is wrong. `ImportError`: Gradio is missing. `OSError`: the
        port is taken.
    """
    require_gradio()
    serve_app(build_demo([verifier] if isinstance(verifier, str) else verifier), port, on_start)


def judge_pasted(verifier: Any, question: str, completion: str, evidence: str) -> str:
    """The page of one completion; passages of evidence are divided by empty lines."""
    passages = [it.strip() for it in re.split(r"\n\s*\n", evidence) if it.strip()]
    row = {"completion": completion, "question": question.strip() or None, "evidence": passages}
    for name, text in (("completion", completion), ("question", question), ("evidence", evidence)):
        if len(text) > CHARACTERS:
            raise ValueError(f"the {name} has {len(text)} characters; at most {CHARACTERS} are judged here")
    if not completion.strip():
        raise ValueError("paste a completion")
    found = verify([row], verifier=verifier)
    judged = found.rows[0].verification or Verification()
    table = [{name: it[name] for name in ("measure", "score", "parts")} for it in found.table()[:1]]
    heading = judged.error or ("declines to answer" if found.rows[0].declined else "")
    sample = ReportSample(question.strip() or "The completion", None, [(heading, completion, judged)])
    notes = " ".join(note for note in found.notes if note)
    return render_report("Result", notes or "Click a sentence to see why it has its label.", table, [sample])


def build_demo(verifiers: Sequence[str] = DEMO_VERIFIERS) -> Any:
    """The page, a `gradio.Blocks`. Only the verifiers that are named here can be chosen."""
    import gradio

    loaded = functools.lru_cache(maxsize=None)(load_verifier)
    loaded(verifiers[0])

    def judged(name: str, question: str, completion: str, evidence: str) -> str:
        try:
            return frame_of(judge_pasted(loaded(name), question, completion, evidence), "The judged completion")
        except REFUSALS as error:
            return f'<p role="alert">{escape(redact(str(error)))}</p>'

    with gradio.Blocks(title="hf_factuality: try a verifier", analytics_enabled=False) as app:
        gradio.Markdown("# Which claims does the evidence support?")
        with gradio.Row():
            with gradio.Column():
                question = gradio.Textbox(_EXAMPLE[0], label="Question (optional)", max_length=CHARACTERS)
                completion = gradio.Textbox(_EXAMPLE[1], label="Completion", lines=5, max_length=CHARACTERS)
            evidence = gradio.Textbox(
                _EXAMPLE[2], label="Evidence: passages, divided by empty lines", lines=9, max_length=CHARACTERS
            )
        with gradio.Row(equal_height=True):
            verifier = gradio.Dropdown([*verifiers], value=verifiers[0], label="Verifier", interactive=True)
            run = gradio.Button("Verify")
        painted = gradio.HTML(elem_classes="painted")
        run.click(judged, [verifier, question, completion, evidence], painted, api_visibility="private")
    return app
