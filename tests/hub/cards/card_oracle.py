"""What the Hub asks of a model card's header, and which numbers a text shows: written from the Hub's documentation, without
the package."""

import json
import re
from pathlib import Path

import yaml


def header_and_text(card: str) -> tuple[dict, str]:
    assert card.startswith("---\n")
    _, header, text = card.split("---\n", 2)
    return yaml.safe_load(header), text


def assert_valid_header(header: dict) -> None:
    """The specification of model card metadata, field by field."""
    known = {"language", "license", "license_name", "license_link", "library_name", "pipeline_tag", "base_model",
             "base_model_relation", "datasets", "tags", "model-index"}  # fmt: skip
    assert set(header) <= known, set(header) - known
    assert header["library_name"] in ("transformers", "peft") and header["pipeline_tag"] == "text-generation"
    assert header["tags"] == sorted(set(header["tags"])) and all(
        re.fullmatch(r"[\w.-]+", tag) for tag in header["tags"]
    )
    for name in ("base_model", "datasets"):
        values = header.get(name, [])
        for value in [values] if isinstance(values, str) else values:
            owner, _, repo = value.rpartition("/")
            assert owner.count("/") == 0 and repo and not re.search(r"[^\w./-]|^[.-]|[.-]$|--|\.\.", value), value
    if "license" in header:
        assert header["license"] == header["license"].lower() and " " not in header["license"]
    for code in [header["language"]] if isinstance(header.get("language"), str) else header.get("language", []):
        assert 2 <= len(code) <= 3 and code.isalpha() and code.islower()
    for model in header.get("model-index", []):
        assert sorted(model) == ["name", "results"] and model["name"] and model["results"]
        for result in model["results"]:
            assert set(result) <= {"task", "dataset", "metrics", "source"}
            assert isinstance(result["task"]["type"], str) and result["task"]["type"] == "text-generation"
            assert isinstance(result["dataset"]["type"], str) and isinstance(result["dataset"]["name"], str)
            assert set(result["dataset"]) <= {"type", "name", "config", "split", "revision", "args"}
            if "source" in result:
                assert result["source"]["url"].startswith("https://huggingface.co/")
            assert result["metrics"]
            for metric in result["metrics"]:
                assert set(metric) <= {"type", "value", "name", "config", "args", "verified"}
                assert isinstance(metric["type"], str) and type(metric["value"]) in (int, float)


def numbers_of_files(*paths: Path) -> set[float]:
    """Every number in some files of JSON, and shares as percent; those inside their texts too."""
    found: set[float] = set()

    def collect(value):
        if isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.update((float(value), 100 * float(value)))
        elif isinstance(value, str):
            found.update(map(float, re.findall(r"\d+(?:\.\d+)?", value)))

    for path in paths:
        collect(json.loads(Path(path).read_text(encoding="utf-8")))
    return found


def shown_numbers(card: str) -> list[str]:
    """Numbers that the part "Results" shows, names of files left out."""
    part = re.search(r"^## Results\n(.*?)^## ", card, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w-])", re.sub(r"`[^`]*`", "", part))


def index_numbers(header: dict) -> list[float]:
    """Numbers of `model-index`."""
    found = []
    for model in header.get("model-index", []):
        for result in model["results"]:
            for metric in result["metrics"]:
                found.append(metric["value"])
                for value in metric.get("args", {}).values():
                    values = value if isinstance(value, list) else [value]
                    found += [item for item in values if isinstance(item, (int, float))]
    return found


def assert_numbers_come_from(card: str, *paths: Path) -> int:
    """Every number of the results is in the files, to the digits that are shown; returns how many were looked at."""
    known = numbers_of_files(*paths)
    shown = shown_numbers(card)
    for text in shown:
        digits = len(text.partition(".")[2])
        assert any(f"{number:.{digits}f}" == text for number in known), f"{text} is in none of the files"
    exact = index_numbers(header_and_text(card)[0])
    assert all(float(number) in known for number in exact)
    return len(shown) + len(exact)
