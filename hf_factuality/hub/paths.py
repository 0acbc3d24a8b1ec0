"""Paths that name somebody's machine, user or disk, among those that everybody has: in containers, caches, documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path


_HOMES = frozenset("home homes Users".split())
_OWN = frozenset("root mnt media tmp private Volumes workspace".split())
"""First folders that are a machine's own, beside homes and disks."""
_EVERYWHERE = frozenset("bin sbin usr lib lib64 etc dev proc sys opt run var".split())
_DISKS = frozenset(
    """
    scratch pscratch ptmp nobackup gpfs lustre lus nfs fsx efs cephfs beegfs glusterfs weka pfs nas raid ssd hdd nvme disk disks
    afs scr tmpdir
    """.split()
)
_SHARED = frozenset(
    """
    work project projects proj cluster hpc network net global storage shared share users user u groups group export exports vast
    ceph ccs cfs vol bigdata
    """.split()
)
_ALSO_ROUTES = frozenset("users user u groups group storage vol".split())
"""First folders of a cluster's disks; those of `_SHARED` are also parts of addresses, the last ones often."""
_DISK = re.compile(
    r"homes?[\d_-]+\w*|[\w-]*(?:scratch|lustre|gpfs)[\w-]*|(?:beegfs|ceph|cpfs|dfs|dss|fsx|nfs|pfs)[\w-]*|data[\d_-]*\d"
    r"|\w+_work|projappl|[a-z]+-tmp"
)
_BELOW = frozenset("users user u project projects work nobackup".split())
"""Folders of users that stand second, beside homes: `/data/users`, `/p/project`."""
_PLACEHOLDERS = frozenset(
    """
    user username user_name user-name your_user your_username your-username yourusername yourname your_name your-name you shared
    """.split()
)
_DEFAULT_USERS = _PLACEHOLDERS | frozenset(
    "ubuntu ec2-user admin app appuser jovyan vscode runner node coder docker dev worker mambauser micromamba nonroot".split()
)
"""Users that images of containers and of clouds come with."""
_GENERIC = frozenset(
    """
    a ai app artifact artifacts asset assets audio b backup base batch bench benchmark bert best big bin build c cache caches cert
    certs ckpt checkpoint checkpoints code config configs cli csv cuda data dataset datasets db debug default demo deps dir dist
    docker doc docs downloads download dump embeddings env eval evals example examples exp experiment experiments export file files
    final fine finetune finetuned foo bar baz fp full gen generated gguf git github gpt gradio grpo hf hfcache home hub huggingface
    image images img in index inference input inputs install json jsonl last latest lib library llama llm local log logs lora main merged
    merge matplotlib metrics mini mistral ml mlflow model models my new nltk notebook notebooks npm numba offload onnx openai out output
    outputs package packages parquet pip pipeline plot plots pred preds prediction predictions prepared ppo processed profile
    prompt prompts py python pytest quantized quant qwen ray raw repo repos report reports req requirements result results run
    runs sample samples save saved script scripts server setup sft sh snapshot socket sock space spaces src state store stuff sub
    submission temp template test tests text tgi tiny tmp token tokenizer tokenizers tool tools torch torchinductor train trained
    training transformers triton trl tts txt upload uploads user v val validation vectors venv verl video videos vllm vocab wandb
    wav weights wheel wheels whisper whl work workdir workspace x yaml yml z zip dpo rm reward critic actor
    """.split()
)
_UNIX = re.compile(
    r"(?:(?<![\w.~/\\])|(?<=-[ILv])(?<![\w-]-[ILv]))"
    r"(?:(?i:file):/{2,4}(?:localhost)?(?=/)|(?i:file)://(?=[a-z]+/)|[a-z][a-z0-9+]{0,20}:///(?=/))?"
    r"(~|(?:/|(?<=file://)|(?<=FILE://))[\w.@+-]+)(?:/[\w.@+ -]*[\w.@+-])+"
)
# Not `Q:\nText\nA:` of a prompt in a program, nor `f:\Omega\to` of a formula.
_WINDOWS = re.compile(
    r"(?<![A-Za-z0-9_])(?:[A-Za-z]:\\{1,2}(?i:Users|te?mp|repos|research|runs|notebooks|home|projects|work|data)"
    r"|[A-Za-z]:/(?i:Users|repos|research|runs|notebooks)"
    r"|[A-Zc-e]:(?:/|\\{1,2}(?![nrt]))\w[\w .()-]*[\w)]"
    r"|\\{2,4}(?:\?\\{1,2}[A-Za-z]:|[\w.$-]+(?:\\{1,2}[\w.$-]+)?)\\{1,2}(?i:home|homes|users|scratch))"
    r"(?:\\{1,2}(?!(?:to|times|rightarrow|mapsto)\b)|/)[^\\/\s\"']+"
)
_NOBODYS_WINDOWS = re.compile(
    r"(?:\\{2,4}\?\\{1,2})?[A-Za-z]:[\\/]+(?:Program Files(?: \(x86\))?|Windows|ProgramData|path|Users[\\/]+(?:Public|Default))"
    r"[\\/].*",
    re.DOTALL,
)
# Addresses, and what stands in front of a path without being a part of it: line ends as programs write them, colours.
_BETWEEN = re.compile(
    r"(?i:\b(?!file:)[a-z][a-z0-9+.-]{0,20}://[^\s/?\"'<>()\[\]{},;|\\][^\s?\"'<>()\[\]{},;|\\]*)"
    r"|(?:\x1b|\\u001b|\\x1b|\\033)\[[\d;]*m|(?<!\\)\\[nrt](?=[/~])"
)
_CONTAINER_FILE = re.compile(r"(?i)(?:.*/)?(?:(?:[\w.-]*\.)?(?:docker|container)file(?:\.[\w.-]+)?|[\w.-]+\.def)")
# Lines that say what is done in a container: instructions of a Dockerfile, commands that start one, volumes of compose.
_INSTRUCTION = re.compile(r"\s*(?:WORKDIR|COPY|ADD|ENV|ARG|RUN|VOLUME|CMD|ENTRYPOINT|ONBUILD|HEALTHCHECK)\s")
_COMMAND = re.compile(
    r"(?i)\b(?:docker|podman|nerdctl|singularity|apptainer|enroot|srun [^\n]{0,300}--container)\b|(?<!\S)(?:-v|--volume|--mount|--bind)\b"
    r"|^\s*-\s+[\"']?[^\s:]+:/"
)
_CONTAINERS_SIDE = re.compile(r"[^\s:]:$|\b(?:dst|destination|target)=$|(?:-w|--workdir)[ =]$")  # HOST:CONTAINER
_ROUTE = re.compile(
    r"(?:\b(?:GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS)\s+|\]\(|(?:href|src|action)\s*=\s*[\"']?"
    r"|\b(?:get|post|put|patch|delete|route|mount|fetch|websocket|Route|path)\(\s*[\"'`])$"
)


def find_path(text: str, any_machine: bool = False, file: str = "") -> tuple[int, str] | None:
    """The first path of [`find_paths`]."""
    return next(find_paths(text, any_machine, file), None)


def find_paths(text: str, any_machine: bool = False, file: str = "") -> Iterator[tuple[int, str]]:
    """Absolute paths of this or another person's machine in a text, with their lines, from 1.

    `any_machine` also counts paths that every machine may have, and those of machines with other folders. `file` is the name of
    the file: in a Dockerfile, paths are those of a container.
    """
    text, home = _BETWEEN.sub(" ", text), f"{Path.home()}/"
    kinds: list[str] = []
    found = [(match.start(), match) for rule in (_UNIX, _WINDOWS) for match in rule.finditer(text)]
    line, counted = 1, 0
    for start, match in sorted(found, key=lambda it: it[0]):
        line, counted = line + text.count("\n", counted, start), start
        if match.re is _WINDOWS:
            theirs = None if _is_nobodys_on_windows(match[0]) else True
        else:
            kinds = kinds or _kinds(text, file)
            before = text[max(text.rfind("\n", 0, start) + 1, start - 80) : start]
            inside = (
                "container" if kinds[line - 1] == "command" and _CONTAINERS_SIDE.search(before) else kinds[line - 1]
            )
            theirs = _is_somebodys(match[0][match.start(1) - start :].removeprefix("/"), before, inside, home)
        if theirs or (any_machine and theirs is False):
            yield line, match[0]


def _kinds(text: str, file: str) -> list[str]:
    """Of each line, whether it is what a `"container"` has, a `"command"` that starts one, or neither: `""`."""
    lines = text.split("\n")
    if _CONTAINER_FILE.fullmatch(file):
        return ["container"] * len(lines)
    kinds: list[str] = []
    for number, line in enumerate(lines):
        kind = kinds[-1] if kinds and lines[number - 1].rstrip().endswith("\\") else ""
        own = "container" if _INSTRUCTION.match(line) else "command" if _COMMAND.search(line) else ""
        kinds.append(kind or own)
    return kinds


def _is_somebodys(path: str, before: str, inside: str, home: str) -> bool | None:
    """Whether a path, without its first `/`, names somebody's machine; `None` if it is known to be nobody's."""
    first, second, *rest = parts = [part.strip()[:100] for part in path.split("/")]
    mine = f"/{path}/".startswith(home)
    if first == "~":
        return None if second.startswith(".") or _is_generic(parts[1:2]) else True
    if first in _HOMES:
        known = _DEFAULT_USERS if inside else _PLACEHOLDERS
        return None if second.split(" ")[0].lower() in known and (inside or not mine) else True
    if inside != "container" and mine and not second.startswith("."):
        return None if inside and first == "root" else True
    if first == "root":
        return None if inside or second.startswith(".") else True
    stem = re.match(r"[a-z]*", first)[0]
    if (
        rest and (second in _HOMES or _DISK.fullmatch(second)) and not _ROUTE.search(before)
    ):  # /p/home, /network/scratch
        return None if inside == "container" and rest[0] in _DEFAULT_USERS else True
    if rest and second in _BELOW and (len(first) == 1 or stem in _SHARED | _DISKS | {"data", "mnt", "public"}):
        return not _ROUTE.search(before)
    if len(first) == 1 and second == "data" and rest:
        return True
    if rest and rest[0] in _HOMES and rest[1:] and first not in _EVERYWHERE:  # /mnt/c/Users/me
        return None if rest[1].lower() in _PLACEHOLDERS else True
    if f"{first}/{second}" in ("private/var", "var/folders", "var/home"):
        return True
    suffixed = re.fullmatch(r"[a-z]+(?:[-_]?\d+|[-_][\w-]+)?", first) is not None
    if (stem in _DISKS and suffixed) or _DISK.fullmatch(first):
        return None if inside == "container" and _is_generic(parts[1:]) else True
    if inside == "container" and (first in _OWN - {"tmp", "private"} or stem in _SHARED):
        return None
    if stem in _SHARED and suffixed:
        short = stem in _ALSO_ROUTES and (len(parts) < 3 or second == "emulated")
        return not (short or _ROUTE.search(before))
    if first in ("tmp", "workspace"):
        return None if (inside and first == "workspace") or _is_generic(parts[1:]) else True
    if path == "mnt/data":  # in prompts of a published tool
        return None
    if inside == "container":
        return None
    return first in _OWN or (first not in _EVERYWHERE and Path(f"/{first}").is_dir())


def _is_nobodys_on_windows(path: str) -> bool:
    user = re.search(r"[\\/]Users[\\/]+([^\\/]+)", path, re.IGNORECASE)
    named = user is None or not (user[1].lower() in _PLACEHOLDERS or re.fullmatch(r"<.*|%.*|\.\.\.", user[1]))
    return not named or _NOBODYS_WINDOWS.fullmatch(path) is not None


def _is_generic(parts: Sequence[str]) -> bool:
    """Whether names of folders and files say nothing but what lies there."""
    names = [part.split(" ")[0] for part in parts]
    words = [word for name in names for word in re.split(r"[^A-Za-z]+", name) if word]
    numbered = any(re.fullmatch(r"[A-Za-z]{1,2}\d{4,}", name) for name in names)  # accounts of universities
    return not numbered and all(word.lower() in _GENERIC for word in words)
