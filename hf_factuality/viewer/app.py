"""The viewer as a Gradio app: what is shown of which run, the curves, and the page of painted completions in a frame.

The page is that of `report/`: filters, search, order, evidence and keys are its own. It lies in a sandboxed frame, so that what
a model wrote reaches neither the app nor the network.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Sequence
from html import escape as escape_html
from pathlib import Path
from typing import Any

from hf_factuality.report import escape, render_report, stored_samples
from hf_factuality.report.stored import StoredCompletion
from hf_factuality.viewer.runs import ViewedRun, common_moments


_DAY = 86_400
_FIRST = ("reward", "factuality/mean", "rewards/accuracies", "loss", "eval_loss")
"""Curves that are shown first, as far as a run has them."""
_CSS = """
.painted iframe { width: 100%; height: calc(100vh - 2rem); height: calc(100svh - 2rem); min-height: 24rem; border: 0; display: block; }
.gradio-container { max-width: 80rem !important; padding: .5rem !important; }
.gradio-container .fillable { padding: .3rem !important; } .gradio-container main { padding: 0 !important; } .painted .html-container { padding: 0 !important; } .painted { padding: 0 !important; }
.title h1 { font-size: 1.3rem; font-weight: 600; margin: 0; overflow-wrap: anywhere; } .row button { align-self: center; }
"""


def page_of(runs: Sequence[ViewedRun], moment: str) -> str:
    """The page of a moment, of one run or of several beside each other."""
    sides: dict[str, list[StoredCompletion]] = {}
    for run in runs:
        found = run.sides(moment if moment in run.moments or len(runs) == 1 else next(iter(run.moments), ""))
        for side, completions in found.items():
            name = side if len(runs) == 1 else ", ".join(filter(None, (run.name, side)))
            sides[name if name not in sides else f"{name} (2)"] = completions
    samples, meanings, note = stored_samples(sides) if sides else ([], {}, "")
    title = " and ".join(dict.fromkeys(run.name for run in runs))
    said = f"{moment}. {note}" if moment else "No completions are stored: `log_completions` stores them."
    return render_report(title, said, [], samples, meanings)


def frame_of(page: str, title: str) -> str:
    """A page in a frame of its own origin, which may run its script and nothing else."""
    return f'<iframe title="{escape_html(title)}" sandbox="allow-scripts" srcdoc="{escape_html(page)}"></iframe>'


def curve_rows(runs: Sequence[ViewedRun], name: str | None) -> Any:
    """Step, value and run of a figure, as a data frame."""
    import pandas

    rows = []
    for number, run in enumerate(runs):
        shown = run.name if number == 0 or run.name != runs[0].name else f"{run.name} (2)"
        rows += [(step, value, shown) for step, value in run.curves().get(name or "", ()) if math.isfinite(value)]
    return pandas.DataFrame(rows, columns=["step", name or "value", "run"])


def figures_of(runs: Sequence[ViewedRun]) -> list[str]:
    """Names of the curves, the most telling ones first."""
    names = dict.fromkeys(name for run in runs for name in run.curves())
    return [*(it for it in _FIRST if it in names), *(it for it in names if it not in _FIRST)]


def build_viewer(runs: Sequence[ViewedRun]) -> Any:
    """The app, a `gradio.Blocks`, of one run or of two."""
    import gradio

    moments, figures = common_moments(runs), figures_of(runs)
    title = " and ".join(dict.fromkeys(run.name for run in runs))
    first = moments[0] if moments else ""

    def shown(moment: str | None) -> tuple[str, str]:
        page = page_of(runs, moment or "")
        return frame_of(page, f"Completions, {moment}"), saved(page)

    def saved(page: str) -> str:
        name = hashlib.sha256(page.encode("utf-8", "replace")).hexdigest()[:12]  # several may look at once
        path = Path(folder.name) / f"completions-{name}.html"
        path.write_text(page, encoding="utf-8", errors="replace")
        return str(path)

    def step(moment: str | None, by: int) -> str | None:
        names = common_moments(runs)
        if moment not in names:
            return names[0] if names else None
        return names[min(max(names.index(moment) + by, 0), len(names) - 1)]

    def reloaded(moment: str | None) -> Any:
        for run in runs:
            run.reload()
        names = common_moments(runs)
        return gradio.Dropdown(choices=names, value=moment if moment in names else (names[0] if names else None))

    def plotted(name: str | None) -> Any:
        return gradio.LinePlot(
            curve_rows(runs, name), x="step", y=name or "value", color="run" if len(runs) > 1 else None, y_title=name
        )

    folder = tempfile.TemporaryDirectory(prefix="hf_factuality-view-")
    frame, file = shown(first)
    with gradio.Blocks(title=f"{title} - hf_factuality", analytics_enabled=False, delete_cache=(_DAY, _DAY)) as app:
        app.folder = folder  # which lasts as long as the app
        gradio.HTML(f"<h1>{escape(title)}</h1>", elem_classes="title")
        with gradio.Row():
            chosen = gradio.Dropdown(moments, value=first or None, label="Completions of", scale=3, interactive=True)
            before = gradio.Button("Previous", size="sm", scale=0, min_width=90)
            after = gradio.Button("Next", size="sm", scale=0, min_width=90)
            again = gradio.Button("Reload", size="sm", scale=0, min_width=90)
            save = gradio.DownloadButton("Save page", value=file, size="sm", scale=0, min_width=90)
        if figures:
            with gradio.Accordion("Curves", open=not moments):
                figure = gradio.Dropdown(figures, value=figures[0], label="Figure", interactive=True)
                plot = plotted(figures[0])
            figure.change(plotted, figure, plot, show_progress="hidden", api_visibility="private")
        painted = gradio.HTML(frame, elem_classes="painted", visible=bool(moments))
        options: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        chosen.change(shown, chosen, [painted, save], **options)
        before.click(lambda it: step(it, -1), chosen, chosen, **options)
        after.click(lambda it: step(it, 1), chosen, chosen, **options)
        again.click(reloaded, chosen, chosen, **options).then(shown, chosen, [painted, save], **options)
        if figures:
            again.click(plotted, figure, plot, **options)
    return app


def launch_options() -> dict[str, Any]:
    """How the apps of this package are launched: no fonts of others, no footer, our style."""
    import gradio

    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    return {"css": _CSS, "theme": gradio.themes.Default(**fonts), "footer_links": [], "quiet": True}
