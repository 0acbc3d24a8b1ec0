"""Packaging of hf_factuality. `constraints.txt` holds the exact versions that the tests pass with."""

import re
from pathlib import Path

from setuptools import find_packages, setup


ROOT = Path(__file__).parent
URL = "https://github.com/hf-factuality/hf_factuality"

# Elsewhere pip would have to compile it, with Rust and C++; without it all works but pushes, which are refused.
WHEELS = " or ".join(f"platform_machine == '{name}'" for name in ("x86_64", "AMD64", "aarch64", "arm64", "ARM64"))
MATH = ["math-verify>=0.9,<1"]
SERVING = ["transformers[serving]>=5.17,<6"]
# The HTTP server is uvicorn's, with a class of its h11 protocol beneath ours; MCP is that of the official library.
SERVE = ["mcp>=2.3,<3", "starlette>=1.10,<2", "uvicorn>=0.54,<1", "h11>=0.16,<1"]
COMPLETION = ["argcomplete>=3.5,<4"]
TEST = [
    "hypothesis>=6.100",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "sentencepiece>=0.2",
    "peft>=0.18",
    *COMPLETION,
    *MATH,
    *SERVING,
    *SERVE,
]
EXTRAS = {
    "peft": ["peft>=0.18"],
    "deepspeed": ["deepspeed>=0.18"],
    "vllm": ["trl[vllm]>=1.16,<1.17", "vllm<0.31"],  # 0.31 wants transformers below 5.18
    "ray": ["ray[data]>=2.50,<3"],
    "dense": ["sentence-transformers>=5"],
    "math": MATH,
    "completion": COMPLETION,
    "serving": SERVING,
    "serve": SERVE,
    "test": TEST,
    "inspect": ["inspect_ai>=0.3.285,<0.4"],  # wants older fsspec and python-dateutil than constraints.txt
    "trackio": ["trackio>=0.43,<1"],  # wants pillow below 13
    "view": ["gradio>=6.31,<7"],  # wants pillow below 13
    "tax": ["lm_eval>=0.4.13,<0.5"],
    "bench": ["matplotlib>=3.8"],
    "browser": ["playwright>=1.50"],  # for tests of the page, with a Chromium of the system
    "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2"],
    "notebooks": ["ipykernel>=6.29", "nbclient>=0.10"],  # for tests of docs/notebooks
    "dev": [*TEST, "matplotlib>=3.8", "mypy>=1.18", "ruff>=0.14"],
}


def readme() -> str:
    """The README with links that also work where only its text is, as on a package index."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\1{URL}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\1{URL}/blob/main/", text)


setup(
    name="hf_factuality",
    version="0.2.0",
    description="Factuality alignment on Hugging Face's stack: verifiers, metrics and trainers that share one schema",
    long_description=readme(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    author="The hf_factuality authors",
    url=URL,
    project_urls={
        "Documentation": f"{URL}/tree/main/docs",
        "Changelog": f"{URL}/blob/main/CHANGELOG.md",
        "Source": URL,
        "Issues": f"{URL}/issues",
    },
    packages=find_packages(include=["hf_factuality", "hf_factuality.*"]),
    package_data={
        "": ["*.pyi"],
        "hf_factuality": ["MODEL_CARD_TEMPLATE.md", "py.typed", "recipes/**/*.yaml", "recipes/**/*.sbatch"],
        "hf_factuality.data.benchmarks": ["*.txt"],
        "hf_factuality.demos": ["*.jsonl"],
        "hf_factuality.evaluation": ["*.txt"],
        "hf_factuality.reading": ["*.txt", "*.safetensors"],
        "hf_factuality.report": ["*.css", "*.js"],
        "hf_factuality.verifiers.judges.lexical": ["*.txt", "*.txt.gz"],
        "hf_factuality.verifiers.judges.small": ["*.md", "*.json", "*.safetensors"],
        "hf_factuality.verifiers.prompts": ["*.txt"],
    },
    python_requires=">=3.11,<3.14",
    install_requires=[
        "accelerate>=1.10",
        "aiohttp>=3.10",
        "bm25s>=0.3.16,<0.4",
        "datasets>=4.7",
        "evaluate>=0.4.6",
        "filelock>=3.12",
        "huggingface_hub>=1.31,<3",
        "jinja2>=3.1",
        f"kingfisher-secret-scanner>=1.5,<2; {WHEELS}",
        "markdown-it-py>=3",
        "mdit-py-plugins>=0.5",
        "numpy>=1.26",
        "pyyaml>=6",
        "rapidfuzz>=3.9",
        "safetensors>=0.8",
        "sentencex>=1.0.10",
        "torch>=2.11",
        "tqdm>=4.66",
        "transformers>=5.17,<6",
        "trl>=1.16,<1.17",
    ],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["hf-factuality = hf_factuality.cli:main"],
        "inspect_ai": ["hf_factuality = hf_factuality.inspect_eval.tasks"],
        "pytest11": ["hf_factuality = hf_factuality.pytest_plugin"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Framework :: Pytest",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
