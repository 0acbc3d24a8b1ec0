"""How large a page of many answers is, and how long headless Chromium takes to paint, search and sort it.

    PYTHONPATH=. python benchmarks/report_page.py --answers 5000

Needs Chromium and `pip install hf_factuality[browser]`.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from hf_factuality.report import ReportSample, write_report
from hf_factuality.spans import Label, LabeledSpan, Verification


WORDS = "the of and in was born city river wrote won prize year first known war king music paper house school".split()
SEARCHES = ("born in", "river wrote", "nothing like it", "")
TIMED = """async ([id, value, name]) => {
    const field = document.getElementById(id);
    field.value = value;
    const start = performance.now();
    field.dispatchEvent(new Event(name, { bubbles: true }));
    await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
    return performance.now() - start;
}"""


def sentence(generator: random.Random, words: int) -> str:
    return " ".join(generator.choices(WORDS, k=words)).capitalize() + "."


def sample(generator: random.Random, number: int) -> ReportSample:
    """Six sentences of 12 words, each with 60 words of evidence."""
    sentences = [sentence(generator, 12) for _ in range(6)]
    spans, end = [], 0
    for text in sentences:
        label, score = generator.choice([*Label]), round(generator.random(), 2)
        spans.append(LabeledSpan(end, end + len(text), label, score, evidence=sentence(generator, 60)))
        end += len(text) + 1
    question = f"q-{number}: {sentence(generator, 8)}"
    return ReportSample(question, None, [("answer", " ".join(sentences), Verification(tuple(spans)))])


def measure(path: Path, chromium: str, runs: int) -> dict[str, float]:
    """Medians over fresh pages, in milliseconds; each search includes its next frame."""
    found: dict[str, list[float]] = {}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(runs):
            page = browser.new_page(viewport={"width": 1100, "height": 800})
            page.goto(path.as_uri())
            page.wait_for_timeout(500)
            figures = {
                "first paint": page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"),
                "ready": page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"),
            }
            for number, text in enumerate(SEARCHES):
                name = "first search" if number == 0 else "slowest later search"
                taken = page.evaluate(TIMED, ["search", text, "input"])
                figures[name] = max(figures.get(name, 0.0), taken)
            figures["sort"] = page.evaluate(TIMED, ["sort", "claims-", "change"])
            for name, value in figures.items():
                found.setdefault(name, []).append(value)
            page.close()
        browser.close()
    return {name: round(statistics.median(values)) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file of the figures as JSON")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        parser.exit(2, "Chromium is not installed\n")
    generator = random.Random(0)
    samples = [sample(generator, number) for number in range(args.answers)]
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        path = write_report(Path(folder) / "page.html", "Many answers", "Made up.", [], samples)
        written = time.process_time() - start
        megabytes = path.stat().st_size / 1e6
        milliseconds = measure(path, chromium, args.runs)
    result = {
        "answers": args.answers,
        "megabytes": round(megabytes, 1),
        "seconds to write": round(written, 1),
        "milliseconds": milliseconds,
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
